"""Work: pictures and sounds for models with a projector file (mmproj): decoding, preprocessing, encoders."""

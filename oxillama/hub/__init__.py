"""Files: models by name, from repositories of the Hugging Face Hub.

`names` says what a name may be and which files of a repository it means, `download` brings them into the
cache that all programs share through `huggingface_hub`, and `cached` lists and deletes what is there.
"""

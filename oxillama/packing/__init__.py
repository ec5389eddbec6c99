"""Work: packed files, which hold the matrices of a model as the kernels take them."""

"""Number formats: what checks, packing, tensors, files and documents know of them."""

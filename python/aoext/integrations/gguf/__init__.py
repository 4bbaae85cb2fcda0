"""GGUF files, the checkpoints of llama.cpp.

loading.py is load_gguf: config.py and config_others.py make a config of keys.py's metadata, names.py says
where tensors go, changes.py what writers have done to them. export.py is the way back, with tensors.py and
vocabulary.py; convert.py makes folders of transformers. kernels.py, layers.py and quantizer.py are what
transformers' own packed models run on.
"""

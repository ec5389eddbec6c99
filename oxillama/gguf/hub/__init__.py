"""Models by name, from repositories of the Hugging Face Hub.

`names` says what a name may be and which files of a repository it means. `download` finds a model in the
cache that all programs share through `huggingface_hub`, and brings missing files into it: `requests` asks the
hub, `listing` checks what the hub says of files, `transfer` writes and checks their bytes. `cached` lists and
deletes the files of the cache.
"""

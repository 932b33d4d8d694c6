"""The call pipeline that every call goes through; it starts in `pipeline.py`."""

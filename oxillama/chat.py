class ChatTemplate:  # placeholder
    def __init__(self, *a):
        pass

"""What a loop says, on both sides of the wire. Each text has a word that no template has."""

SYSTEM = "needlesystem Be brief."
QUESTION = "needlequestion How is the weather?"
RESULT = "needleresult"
"""The text of the tool's result; the result may have more words."""

BESIDE = "needlebeside Use both."
FURTHER = "needlefurther And tomorrow?"
CITIES = ("needleoslo", "needlerome")
TOOL = "weather"
ABOUT = "needletool Tells the weather."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES), "description": "The name of a city."}},
    "required": ["city"],
    "additionalProperties": False,
}

"""Renders chat templates as the Python library `transformers` does: the reference for hob's own rendering.

Reads {"folder", "now", "names", "tools", "conversations"} as JSON; writes {template: {conversation: text, or null where the
template refuses it}}. The environment is the one of transformers/utils/chat_template_utils.py.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what a model is trained on; it leaves no trace in the text."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja's own escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    asked = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.fromtimestamp(asked["now"]).strftime
    rendered = {}
    for path in sorted(Path(asked["folder"]).glob("*.jinja")):
        template = environment.from_string(path.read_text(encoding="utf-8"))
        rendered[path.stem] = {name: render(template, asked, talk) for name, talk in asked["conversations"].items()}
    json.dump(rendered, sys.stdout)


def render(template, asked, talk):
    # What nobody gives is there all the same, as None.
    names = {"documents": None, "add_generation_prompt": True, **asked["names"], **talk}
    del names["messages"]
    names["tools"] = asked["tools"][talk["tools"]] if "tools" in talk else None
    # Arguments are objects to `transformers`; a few templates can only show text.
    for messages in (with_objects(talk["messages"]), talk["messages"]):
        try:
            return template.render(**names, messages=messages)
        except Exception:
            pass
    return None


def with_objects(messages):
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


if __name__ == "__main__":
    main()

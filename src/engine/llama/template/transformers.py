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
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment


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
    rendered = {}
    for path in sorted(Path(asked["folder"]).glob("*.jinja")):
        # `transformers` refuses what changes a list. llama.cpp lets it, and so do we, to see the rest.
        sandbox = SandboxedEnvironment if path.stem in asked["changing_lists"] else ImmutableSandboxedEnvironment
        template = environment(sandbox, asked["now"]).from_string(path.read_text(encoding="utf-8"))
        rendered[path.stem] = {name: render(template, asked, talk) for name, talk in asked["conversations"].items()}
    json.dump(rendered, sys.stdout)


def environment(sandbox, now):
    made = sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = datetime.fromtimestamp(now).strftime
    return made


def render(template, asked, talk):
    names = {**asked["names"], "add_generation_prompt": True, **talk.get("names", {})}
    for name in talk.get("without", []):
        del names[name]
    # What nobody gives is there all the same, as None.
    names |= {"tools": tools_of(asked, talk), "documents": None}
    # Arguments are objects to `transformers`; a few templates can only show text.
    for messages in (with_objects(talk["messages"]), talk["messages"]):
        try:
            return template.render(**names, messages=messages)
        except Exception:  # whatever the template runs into
            pass
    return None


def tools_of(asked, talk):
    """As llama.cpp gives them to every template: these fields, in this order, and no other."""
    if "tools" not in talk:
        return None
    functions = [tool["function"] for tool in asked["tools"][talk["tools"]]]
    known = {"name": None, "description": "", "parameters": {}}
    return [{"type": "function", "function": {name: function.get(name, other) for name, other in known.items()}} for function in functions]


def with_objects(messages):
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


if __name__ == "__main__":
    main()

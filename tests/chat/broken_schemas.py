"""JSON schemas that can't be followed, and what is told about them."""

from __future__ import annotations

from typing import Any

Schema = Any


def prop(schema: Schema) -> Schema:
    """An object with `schema` as its one property, `a`."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


_A = "#/properties/a"
# name: schema, and the place in it that the error names
REFUSED: dict[str, tuple[Schema, str]] = {
    "unknown-ref": (prop({"$ref": "#/$defs/nope"}), f"{_A}: cannot resolve $ref #/$defs/nope"),
    "deep-unknown-ref": (prop({"$ref": "#/definitions/x/y"}), f"{_A}: cannot resolve $ref"),
    "ref-elsewhere": (prop({"$ref": "https://example.com/x.json"}), f"{_A}: unsupported $ref"),
    "ref-to-a-file": (prop({"$ref": "other.json#/x"}), f"{_A}: unsupported $ref"),
    "ref-to-itself": ({"$ref": "#"}, "#: unsupported $ref #"),
    "ref-of-wrong-type": (prop({"$ref": 5}), f"{_A}: $ref must be a string"),
    "unknown-type": (prop({"type": "strin"}), f"{_A}: unrecognized type strin"),
    "type-of-wrong-type": (prop({"type": 5}), f"{_A}: type must be"),
    "unknown-type-in-list": (prop({"type": ["string", "foo"]}), f"{_A}/type/1: unrecognized type"),
    "no-type-in-list": (prop({"type": []}), f"{_A}: type must not be empty"),
    "number-as-schema": (prop(5), f"{_A}: schema must be an object"),
    "true-as-schema": (prop(True), f"{_A}: schema must be an object"),
    "list-as-properties": ({"type": "object", "properties": []}, "#: properties must be"),
    "text-as-additional": (
        {"type": "object", "additionalProperties": "x"},
        "#: additionalProperties must be",
    ),
    "empty-enum": (prop({"enum": []}), f"{_A}: enum must be"),
    "text-as-enum": (prop({"enum": "x"}), f"{_A}: enum must be"),
    "number-as-pattern": (prop({"type": "string", "pattern": 5}), f"{_A}: pattern must be"),
    "negative-length": (prop({"type": "string", "minLength": -1}), f"{_A}: minLength must be"),
    "text-as-length": (prop({"type": "string", "minLength": "2"}), f"{_A}: minLength must be"),
    "text-as-minimum": (prop({"type": "integer", "minimum": "x"}), f"{_A}: minimum must be"),
    "negative-items": (
        prop({"type": "array", "items": {"type": "string"}, "minItems": -3}),
        f"{_A}: minItems must be",
    ),
    "unknown-type-of-items": (
        prop({"type": "array", "items": {"type": "nope"}}),
        f"{_A}/items: unrecognized type nope",
    ),
    "unknown-type-in-tuple": (
        prop({"type": "array", "items": [{"type": "string"}, {"type": "nope"}]}),
        f"{_A}/items/1: unrecognized type nope",
    ),
    "unknown-type-in-one-of": (
        prop({"oneOf": [{"type": "string"}, {"type": "nope"}]}),
        f"{_A}/oneOf/1: unrecognized type nope",
    ),
    "empty-one-of": (prop({"oneOf": []}), f"{_A}/oneOf: must not be empty"),
    "object-as-one-of": (prop({"oneOf": {"type": "string"}}), f"{_A}/oneOf: must be an array"),
    "unknown-ref-in-any-of": (
        prop({"anyOf": [{"$ref": "#/$defs/nope"}, {"type": "string"}]}),
        f"{_A}/anyOf/0: cannot resolve $ref",
    ),
    "unknown-ref-in-all-of": (
        prop({"allOf": [{"type": "object"}, {"$ref": "#/$defs/nope"}]}),
        f"{_A}/allOf/1: cannot resolve $ref",
    ),
    "deep-unknown-type": (
        prop(prop({"type": "array", "items": {"type": "nope"}})),
        f"{_A}/properties/a/items: unrecognized type nope",
    ),
    # llama.cpp tells these without the place
    "unbalanced-pattern": (prop({"type": "string", "pattern": "^($"}), "Invalid pattern ^($"),
    "nothing-to-repeat": (prop({"type": "string", "pattern": "^*$"}), "Invalid pattern ^*$"),
    "ref-in-a-circle": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "failed to parse grammar",
    ),
    "too-many-items": (
        prop({"type": "array", "items": {"type": "string"}, "minItems": 10_000_000}),
        "failed to parse grammar",
    ),
}

# What llama.cpp takes although nothing can be both: a least that is more than the most. It turns
# into a repetition of the grammar whose reader counts down from the difference, below zero.
CONTRADICTIONS: dict[str, Schema] = {
    "length": prop({"type": "string", "minLength": 5, "maxLength": 2}),
    "items": prop({"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 2}),
    "pattern": prop({"type": "string", "pattern": "^a{3,2}$"}),
}

# What llama.cpp leaves out without telling the client; the rest of the schema holds.
LEFT_OUT: dict[str, Schema] = {
    "pattern-without-anchors": prop({"type": "string", "pattern": "abc"}),
    "broken-pattern-without-anchors": prop({"type": "string", "pattern": "("}),
    "pattern-that-looks-ahead": prop({"type": "string", "pattern": "^(?=a)b$"}),
    "pattern-that-looks-back": prop({"type": "string", "pattern": r"^(a)\1$"}),
    "classes-in-a-class": prop({"type": "string", "pattern": r"^[\d\w]+$"}),
    "word-border": prop({"type": "string", "pattern": r"^a\b$"}),
    "unicode-class": prop({"type": "string", "pattern": r"^\p{L}$"}),
    "most-of-more-than-2000": prop({"type": "string", "maxLength": 1_000_000_000}),
    "contradicting-integers": prop({"type": "integer", "minimum": 5, "maximum": 2}),
    "bounds-of-a-number": prop({"type": "number", "minimum": 0, "maximum": 1}),
    "multiple": prop({"type": "integer", "multipleOf": 5}),
    "unique-items": prop({"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    "unknown-format": prop({"type": "string", "format": "colour"}),
    "not": prop({"not": {"type": "string"}}),
    "if": prop({"if": {"type": "string"}, "then": {"const": "a"}}),
    "all-of-different-types": prop({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    "enum-of-another-type": prop({"type": "integer", "enum": ["a"]}),
    "required-of-nothing": {"type": "object", "properties": {"a": {"type": "string"}},
                            "required": ["a", "b"]},
    "least-properties": {"type": "object", "minProperties": 3},
    "patterns-of-properties": {"type": "object", "patternProperties": {"^a$": {"type": "nope"}}},
}  # fmt: skip

# What is no schema at all
NOT_SCHEMAS: dict[str, Schema] = {"text": "x", "number": 5, "list": [], "true": True}

"""Messages of protobuf from a declaration in text, without generated code."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

#: A plane of XLA's profile: its id, which may be missing, and its name.
_PLANE = re.compile(rb"(?:\x08[\x80-\xff]*[\x00-\x7f])?\x12([\x01-\x7f])([\x20-\x7e]+)", re.DOTALL)


@lru_cache
def declared(text: str) -> dict[str, Any]:
    """Map names of declared messages to their classes.

    A message is a line, continued in lines that begin with a blank: its name, then its fields as
    ``name:number:type``; a type with ``*`` is repeated, a type with a capital is another message.
    """
    # imported here, because most files need no protobuf
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="declared.proto", package="declared")
    for line in text.strip().replace("\n ", " ").splitlines():
        name, *members = line.split()
        message = file.message_type.add(name=name)
        for member in members:
            called, number, kind = member.split(":")
            label = field.LABEL_REPEATED if kind[0] == "*" else field.LABEL_OPTIONAL
            added = message.field.add(name=called, number=int(number), label=label)
            kind = kind.lstrip("*")
            if kind[0].isupper():
                added.type, added.type_name = field.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                added.type = field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }


def is_xla_profile(head: bytes) -> bool:
    """Check whether a file begins with a plane of XLA's profile: its id, and its name in plain text."""
    size = re.match(rb"\n[\x80-\xff]*[\x00-\x7f]", head)
    plane = _PLANE.match(head, size.end()) if size else None
    return plane is not None and len(plane[2]) >= plane[1][0]

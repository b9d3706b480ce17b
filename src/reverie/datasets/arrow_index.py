"""Reads Arrow streams and files, and how many bytes they expand to, before anything is expanded.

A single compressed batch can fill the memory, and pyarrow expands it to say how large it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.core.errors import DataError
from reverie.core.files import check_expanded
from reverie.datasets.source import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_MAGIC = b"ARROW1"
"""First and last bytes of an Arrow file."""
MAX_PADDING = 128
"""Largest number of bytes between the last batch of an Arrow file and its index."""


def read_arrow_file(file: Path) -> Any:
    """Return the table of an Arrow stream, or of an Arrow file, whose index at its end names its batches."""
    arrow = import_pyarrow()
    mapped = arrow.memory_map(str(file))
    is_file = mapped.read(6) == ARROW_MAGIC
    mapped.seek(0)
    messages = _indexed_messages(file, mapped) if is_file else arrow.ipc.MessageReader.open_stream(mapped)
    check_expanded(file, mapped.size(), sum(map(_expanded_size, messages)))
    mapped.seek(0)
    return (arrow.ipc.open_file if is_file else arrow.ipc.open_stream)(mapped).read_all()


def _indexed_messages(file: Path, mapped: pa.MemoryMappedFile) -> Iterator[Any]:
    """Yield the dictionaries and batches of an Arrow file; DataError if its index does not reach to its end.

    The file ends with the index, its length and a mark; Arrow's ``format/File.fbs`` numbers the fields of the index.
    """
    size = mapped.size()
    mapped.seek(size - 10)
    index_size, mark = struct.unpack("<i6s", mapped.read(10))
    mapped.seek(size - 10 - index_size)
    index, content_end = _FlatBuffer(mapped.read(index_size)), 0
    for number in (2, 3) if mark == ARROW_MAGIC else ():  # Footer.dictionaries and Footer.recordBatches
        if not (position := index.field(index.target(0), number)):
            continue
        blocks = index.target(position)
        for block in range(index.number(blocks)):
            offset, metadata_size, body_size = index.numbers("<qi4xq", blocks + 4 + 24 * block)
            mapped.seek(offset)
            yield import_pyarrow().ipc.read_message(mapped)
            content_end = max(content_end, offset + metadata_size + body_size)
    if mark != ARROW_MAGIC or (content_end and size - 10 - index_size - content_end > MAX_PADDING):
        raise DataError(f"{file}: its index ends at byte {content_end:,}, before its content: it seems damaged.")


class _FlatBuffer:
    """A flatbuffer, read by positions in its bytes."""

    def __init__(self, data: bytes | pa.Buffer) -> None:
        self.data = memoryview(data)

    def numbers(self, kinds: str, position: int) -> tuple[int, ...]:
        return struct.unpack_from(kinds, self.data, position)

    def number(self, position: int, kind: str = "<I") -> int:
        return self.numbers(kind, position)[0]

    def field(self, table: int, index: int) -> int:
        """Return the position of a field of a table; 0 if it is missing."""
        vtable, entry = table - self.number(table, "<i"), 4 + 2 * index
        offset = self.number(vtable + entry, "<H") if entry < self.number(vtable, "<H") else 0
        return offset and table + offset

    def target(self, position: int) -> int:
        """Return the position to which the offset at ``position`` leads."""
        return position + self.number(position)


def _expanded_size(message: pa.ipc.Message) -> int:
    """Return the bytes of a message of an Arrow stream, decompressed.

    Its metadata are a flatbuffer, whose fields Arrow's ``format/Message.fbs`` numbers from 0. Each compressed buffer in
    its body begins with its expanded size, or with -1 if it is stored as it is.
    """
    if message.type == "schema":
        return 0
    data, body = _FlatBuffer(message.metadata), memoryview(message.body or b"")
    batch = data.target(data.field(data.target(0), 2))  # Message.header
    batch = data.target(data.field(batch, 1)) if message.type == "dictionary" else batch  # DictionaryBatch.data
    if not data.field(batch, 3):  # RecordBatch.compression
        return len(body)
    buffers = data.target(data.field(batch, 2))  # RecordBatch.buffers
    ranges = [data.numbers("<qq", buffers + 4 + 16 * index) for index in range(data.number(buffers))]
    return sum(max(size, *struct.unpack_from("<q", body, start)) for start, size in ranges if size)

"""What a file is instead, told by its first bytes."""

from __future__ import annotations

from app.facts.words import one_line

SNIFF = 512  # bytes; the mark of a tar archive is the furthest, at 257
_TAR = 257
_SHOWN = 60  # characters of a text
_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
# Not every "<": a vocabulary begins with "<pad>", a chat template with "<bos>".
_PAGES = (
    *(b"<!doctype", b"<html", b"<head>", b"<?xml", b"<!--", b"<body", b"<error>", b"<title"),
    *(b"<meta ", b"<script", b"<center>", b"<h1>"),
)
_MARKS = (
    (b"PK\x03\x04", "a zip archive (a pickled PyTorch file?)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"%PDF-", "a PDF document"),
    (b"GGUF", "a GGUF file (of llama.cpp)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (of TensorFlow or Keras)"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x7fELF", "a program or library"),
    (b"\xff\xfe", "text in UTF-16 (some shells' redirection writes so), not UTF-8"),
    (b"\xfe\xff", "text in UTF-16 (some shells' redirection writes so), not UTF-8"),
)
_PICKLES = tuple(bytes((0x80, version)) for version in range(2, 6))  # protocols


def sniff(head: bytes) -> str:
    """What a file is instead, by its first `SNIFF` bytes; empty when nothing is recognised."""
    start = head.removeprefix(_BOM).lstrip(_BLANK).lower()
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file itself (run `git lfs pull`)"
    if start.startswith(_PAGES):
        return "an HTML or XML page, not the file itself (a log-in or error page was saved)"
    for mark, what in _MARKS:
        if head.startswith(mark):
            return what
    if head[_TAR : _TAR + 5] == b"ustar":
        return "a tar archive"
    if head and not head.strip(b"\0"):
        return "only zero bytes (a download that never finished?)"
    return ""


def sniff_weights(head: bytes) -> str:
    """What stands in the place of a safetensors file: there a text or a pickle is wrong too."""
    if head.startswith(_PICKLES):
        return "a pickled PyTorch file"
    return sniff(head) or sniff_text(head)


def sniff_text(head: bytes) -> str:
    """That these first bytes are a text where no text should be, quoted; else empty.

    A cut through a character is no text's fault, so the last three bytes may be broken ones.
    """
    text = head.decode(errors="ignore")
    if len(text.encode()) < len(head) - 3 or not text.strip():
        return ""
    if not all(c.isprintable() or c in "\t\r\n" for c in text):
        return ""
    kind = "JSON text" if text.lstrip()[0] in "{[" else "text"
    return f"{kind}, not the file itself: {one_line(' '.join(text.split()), _SHOWN)}"

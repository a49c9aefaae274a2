"""Certificates that somebody else puts into files and replaces there: read again when they change.

A change is seen by content, every few seconds: a mounted Secret is replaced by swapping a link, and two files are
never replaced at the same moment, so what does not fit together is not used and looked at again the next time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from certs.errors import CertificateError
from certs.pair import Pair

log = logging.getLogger(__name__)

LOOK: Final = 5.0
"""Seconds between two looks at the files."""

_LARGEST: Final = 1 << 20
"""Bytes of a file: a chain of certificates is a few thousand."""


class PairFiles:
    """A serving certificate and its key in two files."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        addresses: Sequence[str] = (),
        *,
        look: float = LOOK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ready = asyncio.Event()
        self.pair: Pair | None = None
        """What is in use."""
        self._files = (certificate, key)
        self._addresses = tuple(addresses)
        self._look = look
        self._clock = clock

    def set_addresses(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._compare()

    def check(self) -> str | None:
        if self.pair is None:
            return f"{self._files[0]} is not read yet"
        if self._clock() >= self.pair.not_after:
            return f"the certificate in {self._files[0]} has ended; put a new one there"
        return None

    async def run(self, use: Callable[[Pair], None]) -> None:
        """Give *use* the pair, and again each time it changes; raises only if it is unusable from the start."""

        def take(contents: tuple[bytes, ...]) -> None:
            try:
                pair = Pair.of(*contents)
                use(pair)
            except CertificateError as error:
                raise CertificateError(f"{self._files[0]} and {self._files[1]}: {error}") from None
            self.pair = pair
            self.ready.set()
            self._compare()

        await follow(self._files, take, look=self._look)

    def _compare(self) -> None:
        if self.pair is not None and (missing := self.pair.missing(self._addresses)):
            log.warning(
                "the certificate in %s is not for %s: an API server that verifies kubelets refuses it",
                self._files[0],
                ", ".join(missing),
            )


async def follow(files: Sequence[Path], take: Callable[[tuple[bytes, ...]], None], *, look: float = LOOK) -> None:
    """Give *take* the contents of the files, and again whenever one changes; never returns.

    Where it raises :class:`CertificateError` the contents are not in use: the first time that goes to the caller,
    later it is logged once and what was there before stays.
    """
    contents = await asyncio.to_thread(_read, files)
    take(contents)
    said = ""
    while True:
        await asyncio.sleep(look)
        try:
            found = await asyncio.to_thread(_read, files)
            if found == contents:
                said = ""
                continue
            contents = found
            take(found)
        except CertificateError as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s; what was read before stays in use", error)
        else:
            said = ""
            log.info("read again: %s", ", ".join(map(str, files)))


def _read(files: Sequence[Path]) -> tuple[bytes, ...]:
    contents = []
    for path in files:
        try:
            with path.open("rb") as file:
                contents.append(file.read(_LARGEST))
        except OSError as error:
            raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    return tuple(contents)

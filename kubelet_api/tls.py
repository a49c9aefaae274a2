"""TLS of the connections that clients make: asyncio's, with buffers that all of them share.

asyncio's own protocol keeps a buffer for each connection for as long as it lives, 256 KiB unless told otherwise, and
makes an object of that size for each record that it decrypts. A buffer is used only within one callback, so that one
is enough for an event loop: an idle session costs less, and a busy one takes more from the system at once. What is
overridden is not asyncio's public interface; ``tests/kubelet_api/test_protocol.py`` names it, and fails when it moves.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any

from kubelet_api.channel import Scratch


class SharedTls(sslproto.SSLProtocol):
    """One connection: TLS between a socket's transport and the protocol of what is within."""

    max_size = 1  # of the buffer that is not used

    # what typeshed does not know of them
    _sslobj: ssl.SSLObject
    _app_protocol: asyncio.Protocol
    _call_eof_received: Callable[[], None]

    def __init__(
        self, scratch: Scratch, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, **options: Any
    ) -> None:
        """*options* are ``SSLProtocol``'s."""
        self._scratch = scratch
        super().__init__(asyncio.get_running_loop(), protocol, context, server_side=True, **options)
        self._ssl_buffer_view = scratch.received

    def get_buffer(self, n: int) -> memoryview:
        return self._scratch.received

    def _do_read__copied(self) -> None:
        """Decrypt what has come, and hand it on as one piece."""
        plain, filled, ended = self._scratch.plain, 0, False
        read = self._sslobj.read
        try:
            while True:
                count = read(len(plain) - filled, plain[filled:])
                if not count:
                    ended = True
                    break
                filled += int(count)
                if filled == len(plain):
                    self._app_protocol.data_received(bytes(plain))
                    filled = 0
        except sslproto.SSLAgainErrors:
            pass
        if filled:
            self._app_protocol.data_received(bytes(plain[:filled]))
        if ended:  # the peer says that it is done
            self._call_eof_received()
            self._start_shutdown()

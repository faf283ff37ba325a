"""A worker: offers its share of a run for a leader elsewhere, one run at a time.

Whoever can ask a worker has a load cannon, and the worker's credentials: beyond loopback it needs a token,
and without one it takes no spec that reads or runs anything of its machine. A leader that is gone ends the
load.
"""

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import WSMsgType, web
from pydantic import ValidationError

from extproc.bench.load import messages
from extproc.bench.load.driver import drive
from extproc.bench.load.generator import Share
from extproc.bench.load.messages import Ask, Go, Halt, MessageError, Order, Question, Reply
from extproc.bench.load.parts import Spool, encode_lines
from extproc.bench.load.process import Done
from extproc.bench.load.secrecy import build_worker_context
from extproc.bench.progress import Standing
from extproc.bench.spec.section import list_faults
from extproc.bench.spec.tree import Spec
from extproc.errors import ExtprocError, SettingsError

PATH = "/run"
# A peer that cannot be reached any more is noticed within one and a half of these; a killed one at once.
HEARTBEAT_S = 10.0
# From the end of the load to the leader's last word about clocks.
_PARTING_S = 60.0
# How long what is noted waits here at most, where it is lost with this machine.
_SEND_S = 0.5
# News for the leader's display; one that is slow to take it loses some, not the run.
_MOST_NEWS = 100

log = logging.getLogger(__name__)


class _Gone(ExtprocError):
    """The leader hung up."""


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_worker(host: str, port: int, token: str | None, stop: asyncio.Event) -> None:
    """Serves leaders until `stop`, with a token over TLS.

    Raises `SettingsError` if the address needs a token, or is taken.
    """
    if token is None and not is_loopback(host):
        raise SettingsError(f"a worker at {host} can be reached from elsewhere: give it a token")
    app = web.Application()
    app.router.add_get(PATH, Worker(token).answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    context = None if token is None else build_worker_context(token)
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
        await stop.wait()
    except OSError as error:
        raise SettingsError(f"{host}:{port}: {error.strerror}") from None
    finally:
        await runner.cleanup()


class Worker:
    """Answers leaders: one after the other."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._turn = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self._knows(request):
            return web.Response(status=401, text="this worker wants its token")
        if self._turn.locked():
            return web.Response(status=503, text="this worker is busy with another run")
        async with self._turn:
            socket = web.WebSocketResponse(
                heartbeat=HEARTBEAT_S, max_msg_size=messages.MOST_BYTES, compress=False
            )
            await socket.prepare(request)
            await _Service(socket, is_trusted=self._token is not None).run()
            await socket.close()
            return socket

    def _knows(self, request: web.Request) -> bool:
        # A page in a browser may open sockets to this machine, but has to say where it is from.
        if "Origin" in request.headers:
            return False
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._token is None or hmac.compare_digest(given.encode(), self._token.encode())


class _Service:
    """One run for one leader. Implements `Progress` by telling the leader."""

    def __init__(self, socket: web.WebSocketResponse, *, is_trusted: bool) -> None:
        self._socket, self._is_trusted = socket, is_trusted
        self._stop = asyncio.Event()
        self._start: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._news: asyncio.Queue[Standing] = asyncio.Queue(_MOST_NEWS)

    def update(self, snapshot: Standing) -> None:
        with suppress(asyncio.QueueFull):
            self._news.put_nowait(snapshot)

    async def run(self) -> None:
        """Never raises what is the leader's or the network's doing."""
        try:
            await self._work(await self._take_order())
        except _Gone:
            log.info("a leader hung up: its run is over")
        except (ExtprocError, OSError) as error:
            log.info("a run was refused: %s", error)
            with suppress(ConnectionError, RuntimeError):
                await self._tell(messages.Refused(str(error)))

    async def _take_order(self) -> list[Share]:
        order = await self._receive()
        if not isinstance(order, Order):
            raise MessageError("a run begins with an order")
        try:
            spec = Spec.model_validate(order.spec)
        except ValidationError as error:
            raise SettingsError(list_faults(error)) from None
        for fault in find_refusals(spec, is_trusted=self._is_trusted):
            raise SettingsError(fault)
        gathering = messages.Gathering(order)
        while not gathering.is_complete:
            more = await self._receive()
            if not isinstance(more, messages.Prompts | messages.Starts):
                raise MessageError("an order is followed by its prompts and starts")
            gathering.add(more)
        return gathering.build(spec)

    async def _work(self, shares: list[Share]) -> None:
        offering = asyncio.create_task(self._offer(shares))
        listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait({offering, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not offering.done():
                await listening
            await offering
            # The leader asks for our clocks once more, and hangs up.
            await asyncio.wait({listening}, timeout=_PARTING_S)
        finally:
            for task in (offering, listening):
                task.cancel()
            await asyncio.wait({offering, listening})

    async def _offer(self, shares: list[Share]) -> None:
        """Offers the load, and sends on what its processes note in a file, which holds up none of them."""
        with TemporaryDirectory() as folder:
            spool, over = Spool(Path(folder) / "records", messages.BATCH_BYTES), asyncio.Event()
            noting = [replace(share, journal=spool.path) for share in shares]
            telling = asyncio.create_task(self._tell_news())
            sending = asyncio.create_task(self._send_on(spool, over))
            try:
                done = await drive(noting, self, self._stop, self._agree)
                over.set()
                await sending
            finally:
                telling.cancel()
                sending.cancel()
            await self._finish(done, spool, is_recounted=shares[0].spec.target.tokenizer is not None)

    async def _agree(self) -> float:
        await self._tell(messages.Prepared())
        return await self._start

    async def _listen(self) -> None:
        while True:
            match await self._receive():
                case Ask():
                    await self._tell(messages.Told(time.monotonic(), time.time()))
                case Go(monotonic_s) if not self._start.done():
                    self._start.set_result(monotonic_s)
                case Halt():
                    self._stop.set()
                case other:
                    raise MessageError(f"{type(other).__name__} does not belong here")

    async def _send_on(self, spool: Spool, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _SEND_S)
            for lines in spool.read_new():
                await self._tell(messages.Noted(lines))

    async def _finish(self, done: list[Done], spool: Spool, *, is_recounted: bool) -> None:
        """Says that all was sent; what was counted at the end, or had no room on the disk, comes again."""
        records, lines = [record for each in done for record in each.records], spool.lines
        if is_recounted or lines < len(records):
            for batch in messages.cut_batches(records):
                await self._tell(messages.Noted(encode_lines(batch)))
            lines += len(records)
        await self._tell(messages.Finished(tuple(each.stats for each in done), lines))

    async def _tell_news(self) -> None:
        while True:
            await self._tell(messages.News(await self._news.get()))

    async def _tell(self, message: Reply) -> None:
        await self._socket.send_bytes(messages.encode(message))

    async def _receive(self) -> Question:
        frame = await self._socket.receive()
        if frame.type is WSMsgType.BINARY:
            return messages.decode_question(frame.data)
        if frame.type is WSMsgType.TEXT:
            raise MessageError("not a message: text")
        raise _Gone


def find_refusals(spec: Spec, *, is_trusted: bool) -> Iterator[str]:
    """Why a worker does not run a spec: what it lacks, and what a stranger may not have it do."""
    target = spec.target
    given = {
        "plugins": spec.plugins,
        "target.api-key-env": target.api_key_env,
        "target.token-file": target.token_file,
        "target.token-command": target.token_command,
        "target.tokenizer": target.tokenizer,
        "target.sign": target.sign,
    }
    powers = [name for name, value in given.items() if value]
    if powers and not is_trusted:
        yield f"a worker without a token does not use its machine's {', '.join(powers)}"
    if target.api_key_env and target.api_key_env not in os.environ:
        yield f"target.api-key-env: {target.api_key_env} is not set on this worker"

"""A small DNS server for tests: answers what the test sets, over UDP and TCP on one port."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass
class DnsServer(asyncio.DatagramProtocol):
    """Answers from `records`: (name, type) to texts. `patience_s` is its resolvers'."""

    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    ttl_s: int = 5
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR
    is_silent: bool = False
    patience_s: float = 2.0
    truncates: bool = False
    port: int = 0
    questions: list[str] = field(default_factory=list)
    transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self.transport
        if not self.is_silent:
            self.transport.sendto(self.answer(data, truncates=self.truncates), addr)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2))
        answer = self.answer(await reader.readexactly(length), truncates=False)
        writer.write(len(answer).to_bytes(2) + answer)
        await writer.drain()
        writer.close()

    def answer(self, data: bytes, *, truncates: bool) -> bytes:
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        name, kind = str(query.question[0].name), dns.rdatatype.to_text(query.question[0].rdtype)
        self.questions.append(f"{name} {kind}")
        response.set_rcode(self.rcode)
        texts = self.records.get((name, kind), [])
        if truncates:
            response.flags |= dns.flags.TC
        elif texts:
            response.answer.append(dns.rrset.from_text(name, self.ttl_s, "IN", kind, *texts))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire()

    def resolver(self) -> dns.asyncresolver.Resolver:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = self.port
        resolver.timeout = resolver.lifetime = self.patience_s
        resolver.search = [dns.name.from_text("default.svc.cluster.local.")]
        return resolver


@asynccontextmanager
async def serving_dns(server: DnsServer) -> AsyncIterator[DnsServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        tcp = await asyncio.start_server(server.serve_tcp, sock=listening)
        server.port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        place = ("127.0.0.1", server.port)
        transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=place)
        try:
            yield server
        finally:
            transport.close()
            tcp.close()
            await tcp.wait_closed()

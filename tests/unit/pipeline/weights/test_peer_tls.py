"""TLS of the peer server: it serves over https, and wrong files, clients and authorities get one clear error."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.peer_file import read_peer_file
from pipeline.weights.tls import client_context, server_context
from schemas.errors import WeightsError
from tests.unit.pipeline.weights.helpers import TOKEN, new_store

_MIB = 2**20


class Files:
    """An authority, and a certificate and key for this machine, as PEM files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls") / "others")


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


def _server(store: ChunkStore, files: Files, **fields: object) -> PeerServer:
    context = server_context(cert=files.cert, key=files.key)
    return PeerServer(PeerSettings(stores=[store], token=TOKEN, tls=context, **fields))  # type: ignore[arg-type]


def _get(url: str, digest: str, *, context: ssl.SSLContext, traffic_class: str = "weights") -> bytes:
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=10, context=context)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Rlweave-Class": traffic_class}
        connection.request("GET", f"/v1/chunks/{digest}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    finally:
        connection.close()


def test_chunks_and_news_come_over_https(store: ChunkStore, files: Files, tmp_path: Path) -> None:
    data = bytes(range(256)) * (5 * _MIB // 256)
    digest = store.put(data).digest
    server = _server(store, files, upload_bytes_s={"background": float(2**30)}, folder=tmp_path)
    url = server.start()
    try:
        context = client_context(ca=files.ca)
        assert url.startswith("https://127.0.0.1:")
        assert read_peer_file(tmp_path) == {"url": url, "pid": server_pid(url, context=context)}
        assert _get(url, digest, context=context) == data
        assert _get(url, digest, context=context, traffic_class="background") == data
        connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=10, context=context)
        body = json.dumps({"want": [digest]})
        connection.request("POST", "/v1/news", body=body, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert json.loads(answer.readline()) == {"domain": "", "chunks": [digest]}
        answer.close()
        connection.close()
    finally:
        server.stop()


def server_pid(url: str, *, context: ssl.SSLContext) -> int:
    """As its health tells it."""
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=10, context=context)
    connection.request("GET", "/v1/health", headers={"Authorization": f"Bearer {TOKEN}"})
    pid = json.loads(connection.getresponse().read())["pid"]
    connection.close()
    assert isinstance(pid, int)
    return pid


def test_a_plain_client_and_one_with_another_authority_get_nothing(
    store: ChunkStore, files: Files, others: Files
) -> None:
    digest = store.put(b"abc").digest
    server = _server(store, files)
    url = server.start()
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            _get(url, digest, context=client_context(ca=others.ca))
        with pytest.raises(ssl.SSLCertVerificationError):
            _get(url, digest, context=client_context(ca=None))
        plain = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        plain.request("GET", "/v1/health")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError, http.client.BadStatusLine)):
            plain.getresponse()
        plain.close()
        assert _get(url, digest, context=client_context(ca=files.ca)) == b"abc"
    finally:
        server.stop()


def test_a_client_checks_the_name_of_the_server(store: ChunkStore, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("elsewhere.test")
    ca, both = tmp_path / "ca.pem", tmp_path / "both.pem"
    authority.cert_pem.write_to_path(str(ca))
    issued.private_key_and_cert_chain_pem.write_to_path(str(both))
    digest = store.put(b"abc").digest
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN, tls=server_context(cert=both, key=None)))
    url = server.start()
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"):
            _get(url, digest, context=client_context(ca=ca))
    finally:
        server.stop()


def test_a_plain_advertised_url_of_a_server_with_tls_is_refused(store: ChunkStore, files: Files) -> None:
    with pytest.raises(WeightsError, match="advertised URL is http://") as caught:
        _server(store, files, advertised_url="http://peer.test:1").start()
    assert "advertised_url" in caught.value.hint


def test_without_a_certificate_there_is_no_tls() -> None:
    assert server_context(cert=None, key=None) is None


def test_a_key_without_a_certificate_is_refused(files: Files) -> None:
    with pytest.raises(WeightsError, match="tls_cert is not set"):
        server_context(cert=None, key=files.key)


def test_a_missing_file_is_named(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(WeightsError, match=r"tls_cert .*missing.pem cannot be read: No such file"):
        server_context(cert=missing, key=files.key)
    with pytest.raises(WeightsError, match=r"tls_key .*missing.pem cannot be read: No such file"):
        server_context(cert=files.cert, key=missing)
    with pytest.raises(WeightsError, match=r"tls_ca .*missing.pem cannot be read: No such file"):
        client_context(ca=missing)
    with pytest.raises(WeightsError, match=r"tls_ca .* cannot be read: Is a directory"):
        client_context(ca=tmp_path)


def test_a_file_that_is_no_pem_is_named(files: Files, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not PEM")
    for cert, key in ((wrong, files.key), (files.cert, wrong), (files.cert, None), (files.key, files.key)):
        with pytest.raises(WeightsError, match="cannot be used"):
            server_context(cert=cert, key=key)
    for ca in (wrong, files.key):
        with pytest.raises(WeightsError, match="holds no PEM certificate"):
            client_context(ca=ca)


def test_a_key_of_another_certificate_is_refused(files: Files, others: Files) -> None:
    with pytest.raises(WeightsError, match="do not belong together"):
        server_context(cert=files.cert, key=others.key)


def test_a_key_with_a_passphrase_is_refused_without_asking(files: Files, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(WeightsError, match="has a passphrase"):
        server_context(cert=files.cert, key=locked)

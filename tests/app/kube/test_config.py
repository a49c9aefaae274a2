"""Kubeconfigs of every shape, and the credentials that come out of them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.kube import credentials as module
from app.kube.config import Connection, ExecPlugin, in_cluster, load, proxy_from_environment
from app.kube.credentials import Access, Credentials, expiry_of_token, run_plugin
from app.kube.errors import ConfigError
from devcluster import pki

SECRET = "s3cr3t-s3cr3t-s3cr3t-s3cr3t-s3cr3t"
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def authority() -> pki.Pair:
    return pki.authority("test")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a kubeconfig with one cluster, user and context."""

    def write(
        user: dict[str, Any] | None = None,
        *,
        path: str = "config",
        context: str = "here",
        current: str | None = "here",
        **cluster: Any,
    ) -> Path:
        cluster = {"server": "https://host.example:6443", **{k.replace("_", "-"): v for k, v in cluster.items()}}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": f"{context}-cluster", "cluster": cluster}],
            "users": [{"name": f"{context}-user", "user": {} if user is None else user}],
            "contexts": [
                {"name": context, "context": {"cluster": f"{context}-cluster", "user": f"{context}-user"}},
            ],
        }
        if current:
            config["current-context"] = current
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(config))
        return file

    return write


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _access(connection: Connection) -> Access:
    return asyncio.run(Credentials(connection).current())


def _authorization(connection: Connection) -> str | None:
    return dict(_access(connection).headers).get("Authorization")


# ---------------------------------------------------------------------- clusters


def test_server_prefix_tls_name_proxy_and_namespace(write: Write) -> None:
    path = write(
        server="https://rancher.example/k8s/clusters/c-1/",
        tls_server_name="kubernetes",
        proxy_url="http://user:pw@proxy:3128",
        insecure_skip_tls_verify=True,
    )
    config = yaml.safe_load(path.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    path.write_text(json.dumps(config))  # JSON is YAML
    connection = load(path)
    assert connection.server == "https://rancher.example/k8s/clusters/c-1"
    assert connection.tls_server_name == "kubernetes"
    assert connection.proxy == "http://user:pw@proxy:3128"
    assert connection.insecure
    assert connection.namespace == "team"
    access = _access(connection)
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_NONE


def test_context_is_the_current_one_or_the_one_given(write: Write) -> None:
    first, second = write(), write(path="second", context="there", current="there", server="https://there")
    config, other = yaml.safe_load(first.read_text()), yaml.safe_load(second.read_text())
    for key in ("clusters", "users", "contexts"):
        config[key] += other[key]
    first.write_text(yaml.safe_dump(config))
    assert load(first).server == "https://host.example:6443"
    assert load(first, "there").server == "https://there"


def test_a_list_of_files_is_merged_as_kubectl_does(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "token").write_text("from-b\n")
    first = write(path="a/config")
    second = write({"tokenFile": "token"}, path="b/config", context="there", current="there", server="https://there")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "missing"), str(first), str(second)]))
    assert load(None).server == "https://host.example:6443", "the first current-context counts"
    connection = load(None, "there")
    assert connection.server == "https://there"
    assert _authorization(connection) == "Bearer from-b", "relative to the file that names it"


def test_default_file(write: Write) -> None:
    write(path="home/.kube/config")
    assert load(None).server == "https://host.example:6443"


def test_authority_embedded_or_in_a_file(write: Write, tmp_path: Path, authority: pki.Pair) -> None:
    (tmp_path / "ca.crt").write_bytes(b"# \xc3\xa4 comment\n" + authority.certificate)
    for connection in (
        load(write(certificate_authority_data=_b64(authority.certificate))),
        load(write(certificate_authority="ca.crt")),
        load(write(certificate_authority="missing", certificate_authority_data=_b64(authority.certificate))),
    ):
        access = _access(connection)
        assert access.tls is not None
        assert access.tls.verify_mode is ssl.CERT_REQUIRED
        assert access.tls.check_hostname
        assert len(access.tls.get_ca_certs()) == 1, "its own authority and no other"


def test_without_an_authority_the_machines_are_trusted(write: Write) -> None:
    access = _access(load(write()))
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED


# ---------------------------------------------------------------------- users


def test_client_certificate_embedded_or_in_files(
    write: Write, tmp_path: Path, authority: pki.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.NamedTemporaryFile", None)  # no key on a disk
    pair = pki.client(authority, "me")
    pair.write(tmp_path, "me")
    embedded = {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}
    for user in (embedded, {"client-certificate": "me.crt", "client-key": str(tmp_path / "me.key")}):
        access = _access(load(write(user)))
        assert access.tls is not None
        assert access.headers == ()


def test_token_and_token_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    assert _authorization(load(write({"token": "given"}))) == "Bearer given"
    assert _authorization(load(write({"token": "given", "tokenFile": "token"}))) == "Bearer from-file"


def test_basic(write: Write) -> None:
    assert _authorization(load(write({"username": "me", "password": "pw"}))) == "Basic bWU6cHc="


def test_nobody(write: Write) -> None:
    path = write()
    config = yaml.safe_load(path.read_text())
    del config["contexts"][0]["context"]["user"]
    config["users"] = None  # as kubectl writes it
    path.write_text(yaml.safe_dump(config))
    assert _access(load(path)).headers == ()


def test_impersonation(write: Write) -> None:
    user = {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"scope": ["x"]}}
    assert _access(load(write(user))).headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-scope", "x"),
        ("Authorization", "Bearer t"),
    )


def test_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: pki.Pair) -> None:
    (tmp_path / "token").write_text("mine")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "namespace").write_text("team")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    connection = in_cluster(tmp_path)
    assert connection.server == "https://[fd00::1]:6443"
    assert connection.namespace == "team"
    assert _authorization(connection) == "Bearer mine"
    monkeypatch.setattr("app.kube.config.SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr("app.kube.config.in_cluster", lambda: connection)
    assert load(None) is connection


# ---------------------------------------------------------------------- what is wrong, and the way out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [", "line 1: not YAML"),
        ("\x00", "is not YAML; give a kubeconfig"),
        ("", "is empty"),
        ("{}", "is not a kubeconfig: it names no clusters"),
        ("- a", "is not a kubeconfig"),
        ("clusters: 7", "is not a valid kubeconfig: Expected `array | null`, got `int` - at `$.clusters`"),
        ("clusters: [{name: a, cluster: {}}]", "missing required field `server`"),
    ],
)
def test_bad_file(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "missing"
    with pytest.raises(ConfigError, match=f"cannot read {path}, the kubeconfig: No such file or directory"):
        load(path)
    monkeypatch.setenv("KUBECONFIG", f"{path}{os.pathsep}{path}2")
    with pytest.raises(ConfigError, match="none of the kubeconfigs"):
        load(None)
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(ConfigError, match="no kubeconfig: none was given"):
        load(None)


def test_unknown_names_say_what_there_is(write: Write) -> None:
    with pytest.raises(ConfigError, match="has no context 'gone'; there are: 'here'"):
        load(write(), "gone")
    with pytest.raises(ConfigError, match="no current-context; choose a context, there are: 'here'"):
        load(write(current=None))
    path = write()
    path.write_text(path.read_text().replace("name: here-user", "name: other"))
    with pytest.raises(ConfigError, match="has no user 'here-user'; there are: 'other'"):
        load(path)


@pytest.mark.parametrize(
    ("user", "cluster", "expected"),
    [
        ({"tokenFile": "gone"}, {}, r"cannot read .*/gone, the token of context 'here' of .*: No such file"),
        ({"tokenFile": "empty"}, {}, r"/empty, the token of .*, is empty"),
        ({"token": "a\nb"}, {}, "the token in .* holds characters that no token has"),
        ({"client-certificate-data": "!"}, {}, "client-certificate in .* is not base64"),
        ({"client-certificate-data": _b64(b"x")}, {}, "is not PEM"),
        ({"client-certificate-data": _b64(b"-----BEGIN X")}, {}, "has a client-certificate but no client-key"),
        ({"auth-provider": {"name": "oidc"}}, {}, "auth-provider 'oidc', which is not supported; use an exec plugin"),
        ({"exec": {"command": "x"}}, {}, "missing required field `apiVersion`"),
        ({"exec": {"command": "x", "apiVersion": "v1", "interactiveMode": "Always"}}, {}, "wants a person"),
        ({}, {"server": "host:6443"}, "is not an https URL"),
        ({"token": "x"}, {"server": "http://host"}, "would show the credentials"),
        ({}, {"proxy_url": "socks5://host"}, "use an http:// or https:// proxy"),
        ({}, {"certificate_authority": "gone"}, "cannot read .*/gone, the certificate-authority"),
    ],
)
def test_bad_user_or_cluster(
    write: Write, tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], expected: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match=expected) as caught:
        load(write(user, **cluster))
    assert str(tmp_path) in str(caught.value), "it names the file"


def test_bad_certificates_are_said_when_the_client_is_made(write: Write, authority: pki.Pair) -> None:
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    with pytest.raises(ConfigError, match=r"the certificate-authority of .* cannot be used"):
        Credentials(load(write(certificate_authority_data=_b64(broken))))
    one, other = pki.client(authority, "a"), pki.client(authority, "b")
    mixed = {"client-certificate-data": _b64(one.certificate), "client-key-data": _b64(other.key)}
    with pytest.raises(ConfigError, match=r"the client certificate of .* cannot be used: KEY_VALUES_MISMATCH"):
        Credentials(load(write(mixed)))


def test_an_encrypted_key_does_not_ask_at_the_terminal(write: Write, authority: pki.Pair) -> None:
    from cryptography.hazmat.primitives import serialization as s

    pair = pki.client(authority, "a")
    key = s.load_pem_private_key(pair.key, None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"pw"))
    user = {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(locked)}
    with pytest.raises(ConfigError, match="is encrypted; give one without a password"):
        Credentials(load(write(user)))


def test_nothing_secret_is_shown(write: Write, tmp_path: Path) -> None:
    connection = load(write({"token": SECRET}, proxy_url=f"http://u:{SECRET}@proxy"))
    plugin = {"command": "x", "apiVersion": "v1", "args": [SECRET], "env": [{"name": "A", "value": SECRET}]}
    others = [load(write({"exec": plugin})), load(write({"username": "u", "password": SECRET}))]
    assert SECRET not in repr([connection, _access(connection), *others])
    path = tmp_path / "broken"
    path.write_text(f"token: {SECRET}\n  key: '{SECRET}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert SECRET not in str(caught.value)


# ---------------------------------------------------------------------- change


def test_files_are_read_again_when_they_change(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FILE_CHECK", 0.0)
    token = tmp_path / "token"
    token.write_text("one")
    credentials = Credentials(load(write({"tokenFile": "token"})))

    async def authorization() -> tuple[str, ssl.SSLContext | None]:
        access = await credentials.current()
        return dict(access.headers)["Authorization"], access.tls

    async def scenario() -> None:
        first = await authorization()
        assert first[0] == "Bearer one"
        assert await authorization() == first, "the same context, so the same connections"
        token.write_text("two")
        second = await authorization()
        assert second[0] == "Bearer two"
        assert second[1] is not first[1]
        token.unlink()
        assert await authorization() == second, "away for a moment, as while a mounted Secret is swapped"
        token.write_text("")
        assert (await authorization())[0] == "Bearer two"
        assert "is empty" in caplog.text
        (tmp_path / "next").write_text("three")
        (tmp_path / "next").replace(token)
        assert (await authorization())[0] == "Bearer three"
        write({"token": "four"}, server="https://moved")
        access = await credentials.current()
        assert (access.server, dict(access.headers)["Authorization"]) == ("https://moved", "Bearer four")

    asyncio.run(scenario())


def test_refused_credentials_are_read_again_once(write: Write) -> None:
    credentials = Credentials(load(write({"token": "one"})))

    async def scenario() -> None:
        access = await credentials.current()
        assert not await credentials.refused(access), "nothing new: no use in asking again"
        assert await credentials.current() is access
        write({"token": "two"})
        assert await credentials.refused(access)
        assert dict((await credentials.current()).headers)["Authorization"] == "Bearer two"
        assert await credentials.refused(access), "another request that was refused with the old one"

    asyncio.run(scenario())


def _jwt(expires: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires, "sub": "ü?>"}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


def test_expiry_of_token() -> None:
    assert expiry_of_token(_jwt(1234)) == 1234
    for other in ("opaque", "a.b.c", "e30.e30.x", "e30.W10.x", "ä.ö.ü"):
        assert expiry_of_token(other) is None


def test_an_expired_token_is_named_as_such(write: Write) -> None:
    credentials = Credentials(load(write({"token": _jwt(0)})))
    access = asyncio.run(credentials.current())
    assert "config (expired 1970-01-01 00:00:00 UTC); renew them there" in credentials.why_refused(access)


# ---------------------------------------------------------------------- exec plugins


def _plugin(folder: Path, script: str, **more: Any) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", **more}}


def _credential(**status: Any) -> str:
    shown = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"cat <<'EOF'\n{json.dumps(shown)}\nEOF"


def test_plugin_gives_a_token(write: Write, tmp_path: Path) -> None:
    script = f'[ "$1" = login ] && [ "$WHO" = me ] && echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info || exit 1\n'
    user = _plugin(
        tmp_path,
        script + _credential(token="t", expirationTimestamp="2100-01-01T00:00:00Z"),
        args=["login"],
        env=[{"name": "WHO", "value": "me"}],
        provideClusterInfo=True,
    )
    connection = load(write(user, tls_server_name="name"))
    access = _access(connection)
    assert dict(access.headers)["Authorization"] == "Bearer t"
    assert access.expires == 4102444800
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {"server": "https://host.example:6443", "tls-server-name": "name"},
        },
    }


def test_plugin_gives_a_certificate(write: Write, tmp_path: Path, authority: pki.Pair) -> None:
    pair = pki.client(authority, "me")
    shown = _credential(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())
    credentials = Credentials(load(write(_plugin(tmp_path, shown, args=None, env=None))))
    static = credentials._tls
    access = asyncio.run(credentials.current())
    assert access.tls is not None
    assert access.tls is not static
    assert access.headers == ()


def test_plugin_is_run_again_before_the_credentials_end(write: Write, tmp_path: Path) -> None:
    """And not for every request."""
    script = f"""echo x >>{tmp_path}/runs
    n=$(wc -l <{tmp_path}/runs)
    end=$(date -u -d "@$(($(date +%s) + 3))" +%Y-%m-%dT%H:%M:%SZ)
    """ + _credential(token="t$n", expirationTimestamp="$end").replace("'EOF'", "EOF")
    credentials = Credentials(load(write(_plugin(tmp_path, script))))

    async def scenario() -> None:
        first = await asyncio.gather(*(credentials.current() for _ in range(20)))
        assert {dict(access.headers)["Authorization"] for access in first} == {"Bearer t1"}
        assert len((tmp_path / "runs").read_text().split()) == 1
        assert first[0].expires is not None
        assert credentials._renew_at < first[0].expires
        deadline = time.monotonic() + 60
        while (await credentials.current()) is first[0]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert dict((await credentials.current()).headers)["Authorization"] == "Bearer t2"

    asyncio.run(scenario())


def test_plugin_that_only_has_expired_credentials_is_not_run_for_every_request(write: Write, tmp_path: Path) -> None:
    shown = _credential(token="t", expirationTimestamp="2000-01-01T00:00:00Z")
    credentials = Credentials(load(write(_plugin(tmp_path, f"echo x >>{tmp_path}/runs\n{shown}"))))

    async def scenario() -> None:
        first = await credentials.current()
        assert credentials._renew_at > time.time() + module.PLUGIN_PAUSE - 2
        assert await credentials.current() is first
        assert len((tmp_path / "runs").read_text().split()) == 1

    asyncio.run(scenario())


def test_plugin_is_not_run_for_every_refusal(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials(load(write(_plugin(tmp_path, _credential(token="t")))))

    async def scenario() -> None:
        access = await credentials.current()
        assert not await credentials.refused(access)
        monkeypatch.setattr(module, "PLUGIN_PAUSE", 0.0)
        assert await credentials.refused(access)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"echo first >&2; echo 'no luck {SECRET}' >&2; echo {SECRET}; exit 3", "failed with exit code 3: no luck …"),
        ("exit 1", "failed with exit code 1"),
        (f"echo {SECRET}", "did not print an ExecCredential"),
        ('echo \'{"apiVersion":"v1","status":{"token":"t"}}\'', "speaks v1, the kubeconfig says client"),
        (_credential(), "printed neither a token nor a client certificate"),
        (_credential(clientCertificateData="x"), "printed neither a token nor a client certificate"),
        (_credential(token="a\nb"), "characters that no token has"),
        ("exec sleep 60", "did not end within 1 s"),
        ("head -c 200000 /dev/zero | tr '\\0' x >&2; exit 1", "failed with exit code 1: …"),
    ],
)
def test_plugin_fails(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    monkeypatch.setattr(module, "PLUGIN_TIMEOUT", 1.0)
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        _access(load(write(_plugin(tmp_path, script))))
    assert f"the exec plugin '{tmp_path}/plugin' of context 'here' of {tmp_path}/config" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_plugin_that_is_not_installed() -> None:
    plugin = ExecPlugin("client.authentication.k8s.io/v1", "no-such-plugin", install_hint="get it from x.example")
    with pytest.raises(ConfigError, match="cannot be run: No such file or directory; get it"):
        asyncio.run(run_plugin(plugin, "here"))


def test_a_failing_plugin_is_forgiven_until_the_credentials_end(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    user = _plugin(tmp_path, _credential(token="t", expirationTimestamp="2100-01-01T00:00:00Z"))
    credentials = Credentials(load(write(user)))

    async def scenario() -> None:
        access = await credentials.current()
        _plugin(tmp_path, "exit 1")
        credentials._renew_at = 0
        assert await credentials.current() is access
        assert "going on with those from before" in caplog.text

    asyncio.run(scenario())


# ---------------------------------------------------------------------- proxy of the machine


@pytest.mark.parametrize(
    ("server", "excluded", "used"),
    [
        ("https://api.example:6443", "", True),
        ("https://api.example:6443", "*", False),
        ("https://api.example:6443", "other.example,api.example", False),
        ("https://api.example:6443", "example", False),
        ("https://api.example:6443", ".example", False),
        ("https://api.example:6443", "*.example", False),
        ("https://api.example:6443", "pi.example", True),
        ("https://api.example:6443", "api.example:443", True),
        ("https://api.example:6443", "api.example:6443", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.2.0.0/16, 10.1.2.4", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "10.0.0.0/8,nonsense/x", True),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("http://api.example", "", False),
    ],
)
def test_proxy_from_environment(server: str, excluded: str, used: bool) -> None:
    environ = {"HTTPS_PROXY": "proxy:3128", "no_proxy": excluded}
    assert proxy_from_environment(server, environ) == ("http://proxy:3128" if used else None)


def test_the_kubeconfigs_proxy_wins(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://machine")
    assert load(write()).proxy == "http://machine"
    assert load(write(proxy_url="http://own")).proxy == "http://own"

"""Credentials that really expired and really come back. What needs clusters is tested with clusters."""

from __future__ import annotations

import base64
import datetime
import json
import shutil
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from devcluster import faults, pki
from devcluster.cluster import Cluster, ClusterSpec
from devcluster.errors import DevclusterError
from devcluster.layout import RELAY_PORT, ClusterLayout, FleetLayout
from devcluster.relay import Weather

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a cluster looks for its cgroups")

HEADER = {"alg": "RS256", "kid": "the-cluster's-key"}
CLAIMS = {
    "aud": ["https://kubernetes.default.svc.cluster.local"],
    "iss": "https://kubernetes.default.svc.cluster.local",
    "jti": "7f1c2b9e",
    "kubernetes.io": {"namespace": "farlet", "serviceaccount": {"name": "farlet", "uid": "0b8d"}},
    "sub": "system:serviceaccount:farlet:farlet",
}
LIFE = {"iat", "nbf", "exp"}


@pytest.fixture
def cluster(made: ClusterLayout, tmp_path: Path) -> Cluster:
    """A cluster with keys and kubeconfigs and nothing that runs."""
    shutil.copytree(made.fleet.folder, tmp_path / "dev")
    layout = replace(made, fleet=FleetLayout("dev", tmp_path / "dev"))
    return Cluster(layout, ClusterSpec("local", 1), lambda: Path("kubectl"))


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def claims(token: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(decode(token.split(".")[1]))
    return content


def signing_key(cluster: Cluster) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key((cluster.layout.pki / "sa.key").read_bytes(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


@pytest.fixture
def token_kubeconfig(cluster: Cluster) -> Path:
    """A kubeconfig with a token as the API server makes them."""
    now = int(time.time())
    life = {"iat": now, "nbf": now, "exp": now + 3600}
    unsigned = f"{encode(json.dumps(HEADER).encode())}.{encode(json.dumps({**CLAIMS, **life}).encode())}"
    signature = signing_key(cluster).sign(unsigned.encode(), padding.PKCS1v15(), hashes.SHA256())
    return pki.write_kubeconfig_user(cluster.layout, "farlet-farlet", {"token": f"{unsigned}.{encode(signature)}"})


def user_of(kubeconfig: Path) -> dict[str, str]:
    user: dict[str, str] = json.loads(kubeconfig.read_text())["users"][0]["user"]
    return user


def certificate_of(kubeconfig: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(user_of(kubeconfig)["client-certificate-data"]))


@pytest.mark.parametrize("name", ["admin", "kubelet"])
def test_certificate_is_expired_for_the_same_identity(cluster: Cluster, name: str) -> None:
    kubeconfig = cluster.layout.kubeconfig(name)
    before = certificate_of(kubeconfig)
    faults.expire(cluster, kubeconfig)
    after = certificate_of(kubeconfig)
    assert after.subject == before.subject
    assert after.not_valid_before_utc < after.not_valid_after_utc < datetime.datetime.now(datetime.UTC)
    ca = x509.load_pem_x509_certificate((cluster.layout.pki / "ca.crt").read_bytes())
    after.verify_directly_issued_by(ca)
    key = serialization.load_pem_private_key(base64.b64decode(user_of(kubeconfig)["client-key-data"]), password=None)
    assert key.public_key() == after.public_key(), "it is refused for the wrong reason"


def test_token_is_expired_with_the_same_claims(cluster: Cluster, token_kubeconfig: Path) -> None:
    before = user_of(token_kubeconfig)["token"]
    faults.expire(cluster, token_kubeconfig)
    after = user_of(token_kubeconfig)["token"]
    header, payload, signature = after.split(".")
    assert header == before.split(".")[0]
    found = claims(after)
    assert {name: value for name, value in found.items() if name not in LIFE} == CLAIMS
    assert found["iat"] <= found["nbf"] < found["exp"] < time.time()
    public = signing_key(cluster).public_key()
    public.verify(decode(signature), f"{header}.{payload}".encode(), padding.PKCS1v15(), hashes.SHA256())


@pytest.mark.parametrize("times", [1, 2])
def test_renewing_puts_back_what_was_there(cluster: Cluster, times: int) -> None:
    kubeconfig = cluster.kubeconfig
    others = sorted(kubeconfig.parent.iterdir())
    before = kubeconfig.read_bytes()
    for _ in range(times):
        faults.expire(cluster, kubeconfig)
    assert kubeconfig.read_bytes() != before
    faults.renew(kubeconfig)
    assert kubeconfig.read_bytes() == before
    assert sorted(kubeconfig.parent.iterdir()) == others


def test_credentials_stay_private(cluster: Cluster) -> None:
    def modes() -> set[int]:
        return {stat.S_IMODE(path.stat().st_mode) for path in cluster.kubeconfig.parent.iterdir()}

    faults.expire(cluster, cluster.kubeconfig)
    assert modes() == {0o600}
    faults.renew(cluster.kubeconfig)
    assert modes() == {0o600}


def test_everything_but_the_credential_stays(cluster: Cluster, token_kubeconfig: Path) -> None:
    before = json.loads(token_kubeconfig.read_text())
    faults.expire(cluster, token_kubeconfig)
    after = json.loads(token_kubeconfig.read_text())
    for config in (before, after):
        del config["users"][0]["user"]["token"]
    assert after == before


def test_nothing_to_renew(cluster: Cluster) -> None:
    with pytest.raises(DevclusterError, match="was not expired by devcluster"):
        faults.renew(cluster.kubeconfig)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("apiVersion: v1\nkind: Config\n", "was not written by devcluster"),
        ('{"users": [{"name": "x", "user": {"exec": {"command": "aws"}}}]}', "neither a token nor an embedded client"),
    ],
)
def test_kubeconfigs_of_others_are_left_alone(cluster: Cluster, tmp_path: Path, content: str, says: str) -> None:
    kubeconfig = tmp_path / "others.kubeconfig"
    kubeconfig.write_text(content)
    with pytest.raises(DevclusterError, match=says) as caught:
        faults.expire(cluster, kubeconfig)
    assert str(kubeconfig) in str(caught.value)
    assert kubeconfig.read_text() == content


def test_kubeconfig_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match=r"nowhere does not exist$"):
        faults.expire(cluster, tmp_path / "nowhere")


def test_kubeconfig_of_the_relay_differs_in_the_address_alone(cluster: Cluster, token_kubeconfig: Path) -> None:
    path = faults.relay_kubeconfig(cluster, token_kubeconfig)
    assert path != token_kubeconfig
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    relayed, direct = (json.loads(each.read_text()) for each in (path, token_kubeconfig))
    assert relayed["clusters"][0]["cluster"].pop("server") == f"https://{cluster.layout.ip}:{RELAY_PORT}"
    assert direct["clusters"][0]["cluster"].pop("server") == cluster.layout.server
    assert relayed == direct


@pytest.mark.parametrize(
    ("weather", "arguments"),
    [
        (Weather(delay=0.05), "netem delay 50ms loss 0%"),
        (Weather(delay=0.05, jitter=0.0125, loss=0.015), "netem delay 50ms 12.5ms loss 1.5%"),
    ],
)
def test_weather_in_the_words_of_tc(weather: Weather, arguments: str) -> None:
    assert faults._netem(weather) == arguments.split()

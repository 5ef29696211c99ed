"""The Helm chart in examples/helm, and the files in examples/kubernetes, as helm and a validator of Kubernetes read them.

    helm_chart.py PROJECT
"""

import copy
import glob
import os
import subprocess
import sys
import tempfile

import yaml
from harness import check, run

PROJECT = sys.argv[1]
BIN = os.path.join(os.environ["ABRIDGE_CLIENTS"], "helm/bin")
CHART = os.path.join(PROJECT, "examples/helm/abridge")
FILES = os.path.join(PROJECT, "examples/kubernetes")


def program(name, *arguments):
    ended = subprocess.run([os.path.join(BIN, name), *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def rendered(*arguments, name="abridge"):
    text = program("helm", "template", name, CHART, *arguments)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        program("kubernetes-validate", "--strict", file.name)
    return by_kind(text)


def by_kind(text):
    return {resource["kind"]: resource for resource in yaml.safe_load_all(text) if resource}


def container(resource):
    return resource["spec"]["template"]["spec"]["containers"][0]


@check
def the_chart_is_without_faults():
    program("helm", "lint", "--strict", CHART)


@check
def the_files_are_valid():
    for file in glob.glob(os.path.join(FILES, "*.yaml")):
        program("kubernetes-validate", "--strict", file)


@check
def by_default_it_is_the_fleet_of_the_files():
    with open(os.path.join(FILES, "fleet.yaml")) as file:
        fleet = by_kind(file.read())
    chart = copy.deepcopy(rendered())
    for kind in ["Job", "Deployment"]:
        assert container(chart[kind]).pop("imagePullPolicy") == "IfNotPresent"
    assert "post-upgrade" in chart["Job"]["metadata"].pop("annotations")["helm.sh/hook"]
    assert chart["Deployment"]["spec"]["template"]["metadata"].pop("annotations")
    for kind in fleet.keys() | chart.keys():
        assert fleet[kind] == chart[kind], (kind, fleet[kind], chart[kind])


@check
def a_redis_needs_no_job_and_names_follow_the_release():
    values = ["storeInit.enabled=false", "settings.ABRIDGE__STORE__ENGINE=redis", "secret=keys", "image.tag=0.2.0"]
    values += ["nodeSelector.disk=ssd", "service.port=80", "publicUrl=https://abridge.example"]
    chart = rendered(*(argument for value in values for argument in ("--set", value)), name="proxy")
    assert "Job" not in chart
    assert all(resource["metadata"]["name"] == "proxy" for resource in chart.values())
    data = chart["ConfigMap"]["data"]
    assert data["ABRIDGE__STORE__ENGINE"] == "redis" and data["ABRIDGE__UPSTREAM__URL"]
    assert data["ABRIDGE__RECALL__PUBLIC_URL"] == "https://abridge.example"
    assert container(chart["Deployment"])["image"].endswith("/abridge:0.2.0")
    assert {"secretRef": {"name": "keys"}} in container(chart["Deployment"])["envFrom"]
    assert chart["Deployment"]["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert chart["Service"]["spec"]["ports"][0]["port"] == 80


@check
def new_settings_start_new_processes():
    def annotations(*arguments):
        return rendered(*arguments)["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations() == annotations() != annotations("--set", "settings.ABRIDGE__SERVER__GRACE=1m")


run()

//! The units, with and without the drop-in, are accepted by `systemd-analyze verify`, without a
//! warning.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const UNITS: [&str; 3] = ["xrayd.service", "xrayd.socket", "xrayd-metrics.socket"];

/// Copies the units, with the daemon that was built in the place of the installed one: verify wants
/// it to exist.
fn copy_units(to: &Path) {
    for unit in UNITS {
        let text = fs::read_to_string(source(unit)).unwrap();
        let text = text.replace(
            "ExecStart=/usr/bin/xrayd",
            concat!("ExecStart=", env!("CARGO_BIN_EXE_xrayd")),
        );
        // Manual pages are generated when the package is made.
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("Documentation=man:"))
            .flat_map(|line| [line, "\n"])
            .collect();
        fs::write(to.join(unit), text).unwrap();
    }
}

#[test]
fn systemd_accepts_the_units() {
    let dir = tempfile::tempdir().unwrap();
    copy_units(dir.path());
    verify(dir.path());
    let drop_ins = dir.path().join("xrayd.service.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::copy(source("confined.conf"), drop_ins.join("confined.conf")).unwrap();
    let drop_ins = dir.path().join("xrayd.socket.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::copy(source("group.conf"), drop_ins.join("group.conf")).unwrap();
    verify(dir.path());
}

/// With the drop-in, root and one group connect; the last setting of a name holds.
#[test]
fn the_drop_in_lets_one_group_connect() {
    let read = |unit| fs::read_to_string(source(unit)).unwrap();
    let text = read("xrayd.socket") + &read("group.conf");
    let set = |name: &str| {
        let mut settings = text.lines().rev().filter_map(|line| line.split_once('='));
        settings.find_map(|(setting, value)| (setting == name).then_some(value))
    };
    assert_eq!(set("SocketMode"), Some("0660"));
    assert_eq!(set("SocketGroup"), Some("xrayd"));
}

/// What systemd finds exposed is in the documents, with a reason, for the service with and without
/// the drop-in; and what the documents argue is still exposed.
#[test]
fn each_exposure_that_systemd_finds_is_argued_in_the_documents() {
    let dir = tempfile::tempdir().unwrap();
    copy_units(dir.path());
    let plain = exposed(dir.path());
    let drop_ins = dir.path().join("xrayd.service.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::copy(source("confined.conf"), drop_ins.join("confined.conf")).unwrap();
    let confined = exposed(dir.path());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/threat-model.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| exposed | in ").unwrap();
    let mut argued = [BTreeSet::new(), BTreeSet::new()];
    for row in table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
    {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [names, place, reason] = cells[..] else {
            panic!("{row}");
        };
        assert!(!reason.is_empty(), "{row}");
        for name in names.split('`').skip(1).step_by(2) {
            let places: &[usize] = match place {
                "both" => &[0, 1],
                "default" => &[0],
                "confined" => &[1],
                _ => panic!("{row}"),
            };
            for &place in places {
                // A bar would end the cell.
                argued[place].insert(name.replace("\\|", "|"));
            }
        }
    }
    assert_eq!(plain, argued[0]);
    assert_eq!(confined, argued[1]);
}

/// The settings of the service that systemd's assessment finds exposed.
fn exposed(dir: &Path) -> BTreeSet<String> {
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--json=short", "--no-pager"])
        .arg(dir.join("xrayd.service"))
        .output()
        .expect("systemd-analyze is needed: install the Debian package `systemd`");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap().iter();
    let exposed = rows.filter(|row| row["set"] == false && !row["exposure"].is_null());
    exposed
        .map(|row| row["name"].as_str().unwrap().to_owned())
        .collect()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../systemd")
        .join(name)
}

fn verify(dir: &Path) {
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .args(["--man=no", "--recursive-errors=no"])
        .args(UNITS.map(|unit| dir.join(unit)))
        .output()
        .expect("systemd-analyze is needed: install the Debian package `systemd`");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "systemd-analyze verify: {complaints}"
    );
    let ours: Vec<_> = complaints
        .lines()
        .filter(|line| line.contains("xrayd"))
        .collect();
    assert!(ours.is_empty(), "systemd-analyze verify warns: {ours:#?}");
}

#[test]
fn the_service_keeps_no_more_capabilities_than_it_argues_for() {
    let service = fs::read_to_string(source("xrayd.service")).unwrap();
    let bounding = service
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .expect("the service bounds its capabilities");
    for capability in bounding.split_whitespace() {
        let argued = service
            .lines()
            .filter(|line| line.starts_with("#   "))
            .any(|line| line.split_whitespace().nth(1) == Some(capability));
        assert!(argued, "{capability} has no reason in the unit");
    }
}

/// The kernel lets nobody suspend another's filter who is under one: these settings are made of
/// filters (`exec_context_has_seccomp` in systemd's src/core/exec-invoke.c).
#[test]
fn nothing_in_the_service_puts_it_under_a_seccomp_filter() {
    const FILTERS: [&str; 15] = [
        "SystemCallFilter",
        "SystemCallLog",
        "SystemCallArchitectures",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "MemoryDenyWriteExecute",
        "LockPersonality",
        "PrivateDevices",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
    ];
    let service = fs::read_to_string(source("xrayd.service")).unwrap();
    for line in service.lines() {
        let set = line.split_once('=').map(|(setting, _)| setting);
        assert!(!set.is_some_and(|set| FILTERS.contains(&set)), "{line}");
    }
}

//! The units as shipped, in a real systemd: socket activation, a daemon that is killed, restarted,
//! reloaded, upgraded and stopped, the watchdog, and a policy for a templated service, while
//! programs work.
//!
//! systemd boots in a container (`systemd-nspawn`) over an overlay of this machine's root, and runs
//! `integration/systemd/scenario.sh`. It needs root. `cargo xtask test --systemd` runs it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, build, workspace_dir};

/// The time limit of the container.
const LIMIT: &str = "300";
/// The service that runs the scenario, and then ends the container.
const SERVICE: &str = "[Unit]
After=multi-user.target xrayd.socket
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/xrayd-test/scenario.sh > /xrayd-test/result 2> /xrayd-test/errors; \
journalctl --unit=xrayd.service > /xrayd-test/journal; systemctl --no-block poweroff'
";

/// Mounted file systems. They are unmounted when this is dropped, the last one first.
struct Mounts(Vec<PathBuf>);

// === impl Mounts ===

impl Mounts {
    fn mount(&mut self, arguments: &[&str], at: &Path) -> Result<()> {
        let mut mount = Command::new("mount");
        run(mount.args(arguments).arg(at))?;
        self.0.push(at.to_owned());
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            // A failure leaves a mount behind, which the next failure shows.
            let _ = Command::new("umount").arg(at).status();
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is no text")
}

/// Puts the programs, the units and the scenario into the container's root.
fn fill(root: &Path) -> Result<()> {
    let copy = |from: &Path, to: &str| {
        fs::copy(from, root.join(to)).with_context(|| format!("cannot copy {}", from.display()))
    };
    copy(&integration::xrayd()?, "usr/bin/xrayd")?;
    copy(&integration::xrayctl()?, "usr/bin/xrayctl")?;
    let units = workspace_dir().join("systemd");
    for unit in ["xrayd.service", "xrayd.socket"] {
        copy(&units.join(unit), &format!("etc/systemd/system/{unit}"))?;
    }
    fs::create_dir_all(root.join("xrayd-test"))?;
    copy(&build(Fixture::Counted)?, "xrayd-test/program")?;
    let scenario = workspace_dir().join("integration/systemd/scenario.sh");
    copy(&scenario, "xrayd-test/scenario.sh")?;
    fs::write(root.join("etc/systemd/system/xrayd-test.service"), SERVICE)?;
    for (wants, unit) in [
        ("sockets.target.wants", "xrayd.socket"),
        ("multi-user.target.wants", "xrayd-test.service"),
    ] {
        let wants = root.join("etc/systemd/system").join(wants);
        fs::create_dir_all(&wants)?;
        let link = wants.join(unit);
        // The machine itself may have it.
        let _ = fs::remove_file(&link);
        symlink(format!("../{unit}"), link)?;
    }
    Ok(())
}

#[test]
#[ignore = "boots systemd as root; `cargo xtask test --systemd` runs it"]
fn the_units_keep_what_they_promise() -> Result<()> {
    let place = tempfile::tempdir()?;
    let place = place.path();
    let mut mounts = Mounts(Vec::new());
    mounts.mount(&["-t", "tmpfs", "tmpfs"], place)?;
    let [upper, work, root] = ["upper", "work", "root"].map(|name| place.join(name));
    for folder in [&upper, &work, &root] {
        fs::create_dir(folder)?;
    }
    let layers = format!(
        "lowerdir=/,upperdir={},workdir={}",
        text(&upper)?,
        text(&work)?
    );
    mounts.mount(&["-t", "overlay", "overlay", "-o", &layers], &root)?;
    fill(&root)?;
    let mut boot = Command::new("timeout");
    // Without this variable, all processes in the container are under a filter of nspawn, and so is
    // the daemon. Such a daemon rightly refuses them.
    boot.env("SYSTEMD_SECCOMP", "0")
        .args([LIMIT, "systemd-nspawn", "--quiet", "--boot", "--directory"])
        .arg(&root)
        .args([
            "--register=no",
            "--keep-unit",
            "--capability=all",
            "--private-network",
        ])
        .stdin(Stdio::null());
    let booted = boot.output().context("cannot start timeout")?;
    let read =
        |name: &str| fs::read_to_string(root.join("xrayd-test").join(name)).unwrap_or_default();
    let (result, errors) = (read("result"), read("errors"));
    let console = String::from_utf8_lossy(&booted.stdout);
    ensure!(
        result.ends_with("end\n"),
        "the scenario did not end: {result}{errors}{console}; systemd-nspawn is in the Debian \
         package systemd-container"
    );
    let passed = result
        .lines()
        .filter(|line| line.starts_with("ok "))
        .count();
    let failed: Vec<_> = result
        .lines()
        .filter(|line| line.starts_with("FAILED "))
        .collect();
    ensure!(
        failed.is_empty(),
        "{failed:#?}; {errors}{}",
        read("journal")
    );
    println!("{passed} checks passed");
    ensure!(passed > 33, "only {passed} checks: {result}");
    Ok(())
}

//! A systemd that boots in a container (`systemd-nspawn`), runs a scenario, and ends.
//!
//! The container's root is a layer over another root, which stays as it is. A scenario is a script.
//! Each line of its output is `ok WHAT` or `FAILED WHAT`, and the last line is `end`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::cache::once;
use crate::tool::output_of;
use crate::workspace_dir;

/// The time limit of the container, in seconds.
const LIMIT: &str = "900";
/// The folder of the scenario and its files, in the container.
const FOLDER: &str = "xrayd-test";
/// The functions that all scenarios use.
const CHECKS: &str = "integration/systemd/checks.sh";
/// The service that runs the scenario, and then ends the container.
const SERVICE: &str = "[Unit]
After=multi-user.target xrayd.socket
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/xrayd-test/scenario.sh > /xrayd-test/result 2> /xrayd-test/errors; \
journalctl --unit=xrayd.service > /xrayd-test/journal; systemctl --no-block poweroff'
";
/// The version of Debian in [`debian_root`], and the packages in it beside the smallest set.
const DEBIAN: [&str; 3] = [
    "--variant=minbase",
    "--include=systemd,systemd-sysv,dbus",
    "bookworm",
];

/// A container that has not booted yet.
#[derive(Debug)]
pub struct Container {
    root: PathBuf,
    /// Unmounts everything before the folder goes.
    _mounts: Mounts,
    _place: tempfile::TempDir,
}

/// Mounted file systems. They are unmounted when this is dropped, the last one first.
#[derive(Debug, Default)]
struct Mounts(Vec<PathBuf>);

/// The root of a clean Debian 12 with systemd, made once.
///
/// # Errors
/// debootstrap is missing, or has no network.
pub fn debian_root() -> Result<PathBuf> {
    let kept = once("debian-12", 0, |work| {
        // The folder to work in is for its owner only.
        let root = work.join("root");
        output_of(Command::new("debootstrap").args(DEBIAN).arg(root)).map(drop)
    })?;
    Ok(kept.join("root"))
}

// === impl Container ===

impl Container {
    /// A container with a layer over this root. The layer is in memory, and ends with the value.
    ///
    /// # Errors
    /// This process may not mount.
    pub fn over(lower: &Path) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let mut mounts = Mounts::default();
        mounts.mount(&["-t", "tmpfs", "tmpfs"], place.path())?;
        let [upper, work, root] = ["upper", "work", "root"].map(|name| place.path().join(name));
        for folder in [&upper, &work, &root] {
            fs::create_dir(folder)?;
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        mounts.mount(&["-t", "overlay", "overlay", "-o", &layers], &root)?;
        fs::create_dir_all(root.join(FOLDER))?;
        Ok(Self {
            root,
            _mounts: mounts,
            _place: place,
        })
    }

    /// Copies a file to this path in the container.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let copied = fs::copy(from, self.root.join(to));
        copied.with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// The path, on this machine, of a file in the container.
    pub fn path(&self, inner: &str) -> PathBuf {
        self.root.join(inner)
    }

    /// Links a unit into the units that this target wants.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn want(&self, target: &str, unit: &str) -> Result<()> {
        let wants = self
            .root
            .join(format!("etc/systemd/system/{target}.target.wants"));
        fs::create_dir_all(&wants)?;
        let link = wants.join(unit);
        // The lower root may have it.
        let _ = fs::remove_file(&link);
        Ok(symlink(format!("../{unit}"), link)?)
    }

    /// Boots the container, runs the scenario of this file, and returns the number of checks that
    /// passed.
    ///
    /// # Errors
    /// A check failed, or the scenario did not end.
    pub fn run(&self, scenario: &Path) -> Result<usize> {
        self.copy(scenario, &format!("{FOLDER}/scenario.sh"))?;
        self.copy(
            &workspace_dir().join(CHECKS),
            &format!("{FOLDER}/checks.sh"),
        )?;
        let unit = "xrayd-test.service";
        fs::write(self.root.join("etc/systemd/system").join(unit), SERVICE)?;
        self.want("multi-user", unit)?;
        let mut boot = Command::new("timeout");
        // Without this variable, all processes in the container are under a filter of nspawn, and
        // so is the daemon. Such a daemon rightly refuses them.
        boot.env("SYSTEMD_SECCOMP", "0")
            .args([LIMIT, "systemd-nspawn", "--quiet", "--boot", "--directory"])
            .arg(&self.root)
            .args([
                "--register=no",
                "--keep-unit",
                "--capability=all",
                "--private-network",
            ])
            .stdin(Stdio::null());
        let booted = boot.output().context("cannot start timeout")?;
        let read =
            |name: &str| fs::read_to_string(self.root.join(FOLDER).join(name)).unwrap_or_default();
        let (result, errors) = (read("result"), read("errors"));
        let console = String::from_utf8_lossy(&booted.stdout);
        ensure!(
            result.ends_with("end\n"),
            "the scenario did not end: {result}{errors}{console}; systemd-nspawn is in the Debian \
             package systemd-container"
        );
        let lines = |begin: &str| {
            let lines = result.lines().filter(|line| line.starts_with(begin));
            lines.collect::<Vec<_>>()
        };
        let failed = lines("FAILED ");
        ensure!(
            failed.is_empty(),
            "{failed:#?}; {errors}{}",
            read("journal")
        );
        Ok(lines("ok ").len())
    }
}

// === impl Mounts ===

impl Mounts {
    fn mount(&mut self, arguments: &[&str], at: &Path) -> Result<()> {
        output_of(Command::new("mount").args(arguments).arg(at))?;
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

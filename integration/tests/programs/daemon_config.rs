//! The configuration file of the daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use integration::{DEADLINE, wait_until};
use nix::sys::signal::Signal;

use crate::scene::Scene;

/// The daemon takes what its file says, unless the command line says something else. A file with
/// mistakes, or one that others may write, keeps it from starting.
#[test]
fn the_file_is_read_and_must_be_right() -> Result<()> {
    let scene = Scene::new()?;
    let file = scene.path("xrayd.toml");
    let path = file.display().to_string();
    fs::write(
        &file,
        "retain = \"7MiB\"\naudit = \"off\"\nlog-level = \"debug\"\n",
    )?;
    fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    let state = scene.path("state").display().to_string();
    let options = ["--config", &path, "--retain", "9MiB", "--state-dir", &state];
    let daemon = scene.daemon_with(&options)?;
    ensure!(
        daemon.log().contains("read the configuration"),
        "{}",
        daemon.log()
    );
    // With a file that has become wrong, it goes on as it is.
    let cli = scene.with(&daemon)?;
    fs::write(&file, "retian = 1\n")?;
    daemon.signal(Signal::SIGHUP)?;
    wait_until(DEADLINE, "the refusal", || {
        Ok(daemon.log().contains("does not restart").then_some(()))
    })?;
    let ran = cli.run(["daemon", "restart"])?;
    ran.failed(
        4,
        &["would not start again", "line 1, column 1: unknown key"],
    )?;
    let pid = daemon.pid();
    cli.ok(["ps"])?;
    // Once it is right again, it restarts.
    fs::write(&file, "retain = \"7MiB\"\n")?;
    cli.ok(["daemon", "restart"])?;
    ensure!(daemon.pid() == pid);
    drop(daemon);

    fs::write(
        &file,
        "retain = \"7MiB\"\naudit = \"off\"\nlog-level = \"debug\"\n",
    )?;
    let mut command = Command::new(integration::xrayd()?);
    command.args(["--config", &path, "--retain", "9MiB", "--print-config"]);
    let printed = command.env("XRAYD_LOG_LEVEL", "warn").output()?;
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    for line in [
        "retain = \"9MiB\" # command line",
        "audit = \"off\" # file",
        "log-level = \"warn\" # environment",
        "retain-exited = \"1GiB\" # default",
    ] {
        ensure!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
    ensure!(
        printed.status.success() && printed.stderr.is_empty(),
        "{printed:?}"
    );

    let started = || {
        Command::new(integration::xrayd()?)
            .args(["--config", &path])
            .output()
            .map_err(anyhow::Error::from)
    };
    for (text, mode, parts) in [
        (
            "retain = 1\nretian = \"1GiB\"\n",
            0o644,
            &["line 2, column 1: unknown key", "has mistakes"][..],
        ),
        (
            "retain = \"4KiB\"\n",
            0o644,
            &["--retain 4KiB is too small"],
        ),
        (
            "retain = \"7MiB\"\n",
            0o666,
            &["others may write to it (mode 0666)"],
        ),
    ] {
        fs::write(&file, text)?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
        let ended = started()?;
        let log = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.code() == Some(2), "{text}: {log}");
        for part in parts {
            ensure!(log.contains(part), "{part}: {log}");
        }
    }
    fs::remove_file(&file)?;
    let ended = started()?;
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(
        ended.status.code() == Some(2) && log.contains("there is no file"),
        "{log}"
    );
    Ok(())
}

//! Opens a browser, where there is one for this user.
//!
//! Others can see the arguments of a process, so the address is no argument: the browser is given a file that only this user can read, and
//! which leads there.

use std::env;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use nix::unistd::geteuid;
use tempfile::{Builder, NamedTempFile};

/// What a browser was opened with; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    _leading: NamedTempFile,
}

// === impl Browser ===

impl Browser {
    /// Whether one would be seen by whoever called: there is a screen, and it is not root's to show pages on.
    pub(crate) fn is_wanted() -> bool {
        let screens = ["WAYLAND_DISPLAY", "DISPLAY"];
        let has = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        screens.into_iter().any(has) && !geteuid().is_root()
    }

    /// Has the user's browser show a page. It goes on by itself; whether it does show it, nobody tells.
    pub(crate) fn open(url: &str) -> io::Result<Self> {
        let mut file = Builder::new();
        file.prefix("xrayctl-view-").suffix(".html");
        let leading = match env::var_os("XDG_RUNTIME_DIR") {
            Some(folder) => file.tempfile_in(folder).or_else(|_| file.tempfile())?,
            None => file.tempfile()?,
        };
        // The address has nothing in it that would have to be escaped.
        writeln!(
            leading.as_file(),
            "<!doctype html><meta charset=\"utf-8\"><title>xrayctl view</title><meta http-equiv=\"refresh\" content=\"0; url={url}\">"
        )?;
        let mut child = Command::new("xdg-open")
            .arg(leading.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // It is waited for only so that it does not stay a zombie.
        thread::spawn(move || child.wait());
        Ok(Self { _leading: leading })
    }
}

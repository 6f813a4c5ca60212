//! Opens a browser, if the user has one.
//!
//! Other users can see the arguments of a process, so the address is no argument. The browser gets
//! a file that only this user can read, and the file leads to the address.

use std::env;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use nix::unistd::geteuid;
use tempfile::{Builder, NamedTempFile};

/// The file that a browser was opened with. Dropping this removes it.
#[derive(Debug)]
pub(crate) struct Browser {
    _leading: NamedTempFile,
}

// === impl Browser ===

impl Browser {
    /// True if the user would see a browser: there is a screen, and the user is not root.
    pub(crate) fn is_wanted() -> bool {
        let screens = ["WAYLAND_DISPLAY", "DISPLAY"];
        let has = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        screens.into_iter().any(has) && !geteuid().is_root()
    }

    /// Opens a page in the user's browser. The browser runs on by itself, and does not report
    /// whether it shows the page.
    pub(crate) fn open(url: &str) -> io::Result<Self> {
        let mut file = Builder::new();
        file.prefix("xrayctl-view-").suffix(".html");
        let leading = match env::var_os("XDG_RUNTIME_DIR") {
            Some(folder) => file.tempfile_in(folder).or_else(|_| file.tempfile())?,
            None => file.tempfile()?,
        };
        // No character of the address needs an escape.
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
        // The thread waits only so that no zombie stays.
        thread::spawn(move || child.wait());
        Ok(Self { _leading: leading })
    }
}

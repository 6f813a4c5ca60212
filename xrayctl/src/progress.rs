//! Progress of long work, on standard error, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::{Console, units};

/// A line that shows the progress of work. It shows nothing if standard error is no terminal.
/// Dropping it erases the line.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

const TICK: Duration = Duration::from_millis(100);

// === impl Progress ===

impl Progress {
    /// Work of unknown length.
    pub(crate) fn spinner(console: &Console, what: &'static str) -> Self {
        Self::with_style(console, "{spinner} {prefix} {msg}", None, what)
    }

    /// Work on `total` things.
    pub(crate) fn steps(console: &Console, what: &'static str, total: u64) -> Self {
        Self::with_style(
            console,
            "{spinner} {prefix} {pos}/{len} {wide_bar}",
            Some(total),
            what,
        )
    }

    /// Sets the number of finished steps.
    pub(crate) fn done(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// Shows the progress of a recording.
    pub(crate) fn recorded(&self, events: u64, lost: u64, bytes: u64) {
        if self.0.is_hidden() {
            return;
        }
        self.0.set_message(format!(
            "{}, {} lost, {}",
            units::counted(events, "event"),
            units::count(lost),
            units::bytes(bytes)
        ));
    }

    /// Prints a line that stays, above the progress.
    pub(crate) fn note(&self, console: &Console, line: &str) {
        self.0.suspend(|| console.note(line));
    }

    fn with_style(
        console: &Console,
        template: &str,
        total: Option<u64>,
        what: &'static str,
    ) -> Self {
        let target = if console.shows_progress() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target).with_prefix(what);
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style);
        if !bar.is_hidden() {
            // Even short work shows the line.
            bar.tick();
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

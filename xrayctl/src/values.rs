//! `--args` and `--retval`: values that are recorded with calls.

use xrayd::types::Capture;
use xrayd_proto::v1;

const HEADING: &str = "Which values";

/// What is recorded of calls beside their time.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Values {
    /// Record the first N integer arguments of each call, as registers hold them: 0 (the default)
    /// to 6
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true,
          value_parser = arguments, help_heading = HEADING)]
    args: Capture,
    /// Record the result of each call, as the register for integer results holds it
    #[arg(long, help_heading = HEADING)]
    retval: bool,
}

// === impl Values ===

impl Values {
    /// The values for the engine.
    pub(crate) fn capture(self) -> Capture {
        match self.retval {
            true => self.args.with_result(),
            false => self.args,
        }
    }
}

fn arguments(count: &str) -> Result<Capture, String> {
    let most = Capture::MOST_ARGUMENTS;
    let count = count.parse().ok();
    count
        .and_then(|count| Capture::NONE.with_arguments(count))
        .ok_or_else(|| format!("expected a number from 0 to {most}: no more are in registers"))
}

/// The values for a daemon; `None` if none is recorded.
pub(crate) fn wire(capture: Capture) -> Option<v1::Capture> {
    (!capture.is_none()).then(|| v1::Capture {
        arguments: capture.arguments().into(),
        result: capture.has_result(),
    })
}

/// The values in words, with a comma before each; empty if none is recorded.
pub(crate) fn in_words(capture: Option<&v1::Capture>) -> String {
    let Some(v1::Capture { arguments, result }) = capture else {
        return String::new();
    };
    let arguments = match arguments {
        0 => String::new(),
        1 => ", 1 arg".to_owned(),
        count => format!(", {count} args"),
    };
    arguments + if *result { ", retval" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_arguments_than_registers() {
        assert_eq!(arguments("6").map(Capture::arguments), Ok(6));
        for wrong in ["7", "-1", "all", "", "4294967296"] {
            assert!(arguments(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn recorded_values_are_described_in_words() {
        for (arguments, result, expected) in [
            (0, false, ""),
            (1, false, ", 1 arg"),
            (6, true, ", 6 args, retval"),
            (0, true, ", retval"),
        ] {
            let capture = v1::Capture { arguments, result };
            assert_eq!(in_words(Some(&capture)), expected);
        }
        assert_eq!(in_words(wire(Capture::NONE).as_ref()), "");
    }
}

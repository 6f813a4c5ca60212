//! `xrayctl mode`.

use std::io;

use serde::{Serialize, Serializer};
use xrayd::types::Mode;
use xrayd_proto::v1::{self, Settings};

use super::Look;
use super::per_process::{NoEffect, Setting};

/// A mode, which is shown by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedMode(pub(crate) Mode);

/// The name of a mode of the gRPC contract; empty if it is not known here.
pub(crate) fn name_of(mode: v1::Mode) -> &'static str {
    let mut all = Mode::ALL.into_iter();
    let known = all.find(|known| NamedMode(*known).wire() == mode);
    known.map_or("", Mode::name)
}

// === impl NamedMode ===

impl NamedMode {
    /// The mode in the gRPC contract.
    pub(crate) fn wire(self) -> v1::Mode {
        match self.0 {
            Mode::Flight => v1::Mode::Flight,
            Mode::Stream => v1::Mode::Stream,
            Mode::Profile => v1::Mode::Profile,
            Mode::Count => v1::Mode::Count,
        }
    }
}

impl Serialize for NamedMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl Setting for NamedMode {
    const KEY: &'static str = "mode";
    type Effect = NoEffect;

    fn of(settings: Settings) -> Option<Self> {
        let mode = settings.mode();
        let mut all = Mode::ALL.into_iter().map(Self);
        all.find(|named| named.wire() == mode)
    }

    fn into_settings(self) -> Settings {
        Settings {
            mode: self.wire().into(),
            ..Settings::default()
        }
    }

    fn describe(&self) -> String {
        self.0.to_string()
    }

    fn render_effect(_: u32, effect: &NoEffect, _: &mut dyn io::Write, _: Look) -> io::Result<()> {
        match *effect {}
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::{Refusal, SettingsReport};

    use super::{
        super::{golden, per_process::PerProcess},
        *,
    };

    #[test]
    fn the_result_of_each_process_is_reported() {
        let report = |pid, before| SettingsReport {
            pid,
            before: Some(NamedMode(before).into_settings()),
            refusal: None,
        };
        let refused = SettingsReport {
            pid: 9,
            before: None,
            refusal: Some(Refusal {
                reason: "target-exited".into(),
                message: "process 9 has ended".into(),
            }),
        };
        let reports = vec![report(7, Mode::Flight), report(8, Mode::Stream), refused];
        let set = PerProcess::new(Some(NamedMode(Mode::Stream)), reports);
        golden::check("mode.txt", |out| set.render(out, Look::PLAIN));
        golden::check_json("mode.json", &set);
    }
}

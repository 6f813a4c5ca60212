//! The names of enumerations' values for people and in JSON: without the prefix that a `.proto`
//! file needs, in lower case.

use serde::Serializer;

use crate::v1::{ClockFaultKind, Detection, Follow, GapCause, Mode, SessionState};

/// A value of an enumeration, with its name.
pub trait Named: TryFrom<i32> {
    /// The name, for example `flight` for `MODE_FLIGHT`. Empty for an unspecified value.
    fn name(&self) -> String;

    /// The name of a value in a message. `unknown` for a value of a later contract.
    fn name_of(value: i32) -> String {
        Self::try_from(value).map_or_else(|_| "unknown".to_owned(), |value| value.name())
    }
}

macro_rules! named {
    ($($enumeration:ident $prefix:literal $serializer:ident)*) => {
        $(
            impl Named for $enumeration {
                fn name(&self) -> String {
                    short(self.as_str_name(), $prefix)
                }
            }

            /// Serialises a value as its name.
            pub(crate) fn $serializer<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&$enumeration::name_of(*value))
            }
        )*
    };
}

named! {
    ClockFaultKind "CLOCK_FAULT_KIND_" clock_fault_kind
    GapCause "GAP_CAUSE_" gap_cause
    Detection "DETECTION_" detection
    Follow "FOLLOW_" follow
    Mode "MODE_" mode
    SessionState "SESSION_STATE_" session_state
}

fn short(name: &str, prefix: &str) -> String {
    match name.strip_prefix(prefix).unwrap_or(name) {
        "UNSPECIFIED" => String::new(),
        name => name.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_lower_case() {
        assert_eq!(Mode::Flight.name(), "flight");
        assert_eq!(SessionState::Tracing.name(), "tracing");
        assert_eq!(ClockFaultKind::Backwards.name(), "backwards");
        assert_eq!(Follow::All.name(), "all");
        assert_eq!(Detection::Unspecified.name(), "");
        assert_eq!(Detection::name_of(3), "polling");
        assert_eq!(Mode::name_of(99), "unknown");
    }
}

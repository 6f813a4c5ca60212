//! The values that calls record beside their time. The trampolines read them.

/// The values that calls of a function record beside their time. The default is none, or the first
/// argument where a sled is made for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capture {
    arguments: u8,
    result: bool,
}

// === impl Capture ===

impl Capture {
    /// The most arguments: those in integer registers, x86-64 System V ABI, §3.2.3.
    pub const MOST_ARGUMENTS: u8 = 6;
    /// No value.
    pub const NONE: Self = Self {
        arguments: 0,
        result: false,
    };

    /// Adds the values of the first `count` registers for integer arguments at the entry. `None` if
    /// there are fewer registers.
    #[must_use]
    pub fn with_arguments(self, count: u32) -> Option<Self> {
        let arguments = u8::try_from(count).ok()?;
        (arguments <= Self::MOST_ARGUMENTS).then_some(Self { arguments, ..self })
    }

    /// Adds the value of the register for integer results at the exit.
    #[must_use]
    pub const fn with_result(self) -> Self {
        Self {
            result: true,
            ..self
        }
    }

    /// The number of arguments, at most [`Capture::MOST_ARGUMENTS`].
    #[must_use]
    pub const fn arguments(self) -> u8 {
        self.arguments
    }

    /// True if the result is recorded.
    #[must_use]
    pub const fn has_result(self) -> bool {
        self.result
    }

    /// True if no value is recorded.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.arguments == 0 && !self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_six_registers() {
        let six = Capture::NONE.with_arguments(6).unwrap();
        assert_eq!(
            (six.arguments(), six.has_result(), six.is_none()),
            (6, false, false)
        );
        assert_eq!(Capture::NONE.with_arguments(7), None);
        assert_eq!(Capture::NONE.with_arguments(256), None);
        assert!(Capture::NONE.with_arguments(0).unwrap().is_none());
        assert!(!Capture::NONE.with_result().is_none());
    }
}

//! Names of functions as text shows them. JSON and formats for other programs have whole names.

use std::borrow::Cow;

use xray_trace::instr_map::without_llvm_suffix;

/// The form of a function's name in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Names {
    /// Without LLVM's suffix of local symbols, such as `(.llvm.77)`.
    #[default]
    Short,
    /// The whole name.
    Full,
}

// === impl Names ===

impl Names {
    /// The name in this form.
    pub(crate) fn show(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Short => without_llvm_suffix(name),
            Self::Full => Cow::Borrowed(name),
        }
    }
}

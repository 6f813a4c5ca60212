//! The entry point for a fuzz target: one symbol by itself. It exists only with `--cfg fuzzing`.

use super::names::{LONGEST_DEMANGLED, demangle, without_parameters, without_return_type};

/// Demangles a symbol, and takes the name apart.
///
/// # Panics
/// If the name is longer than its budget, if its parts are not in it, or if a sufficient budget
/// changes it.
pub fn read_symbol(symbol: &str) {
    let mut budget = usize::MAX;
    let name = demangle(symbol, &mut budget);
    let spent = usize::MAX - budget;
    let whole = name.as_deref().unwrap_or(symbol);
    assert!(name.is_none() || whole.len() <= LONGEST_DEMANGLED);
    let bare = without_parameters(without_return_type(whole));
    assert!(whole.contains(bare));
    for most in [0, whole.len() / 2, spent] {
        let mut budget = most;
        let again = demangle(symbol, &mut budget);
        assert!(budget <= most && again.as_ref().is_none_or(|again| again.len() <= most));
        assert!(again.is_none() || again == name);
    }
}

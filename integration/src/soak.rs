//! The length of tests.

/// `short` by default, `long` with `XRAYD_SOAK=1`, which `cargo xtask soak` sets.
pub fn soak<T>(short: T, long: T) -> T {
    if std::env::var_os("XRAYD_SOAK").is_some_and(|value| value == "1") {
        long
    } else {
        short
    }
}

//! Golden files of rendered output, in `tests/golden/`. `XRAYD_BLESS=1 cargo test -p xrayctl`
//! writes them anew.

use std::path::Path;
use std::{env, fs, io};

use serde::Serialize;

use super::Look;

/// Compares the rendered text with the golden file.
#[track_caller]
pub(crate) fn check(name: &str, render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) {
    let mut out = Vec::new();
    render(&mut out).unwrap();
    let found = String::from_utf8(out).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if env::var_os("XRAYD_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found,
        expected,
        "{} (XRAYD_BLESS=1 writes it anew)",
        path.display()
    );
}

/// Compares the text for terminals of 60 and of 40 columns. No line may be wider.
#[track_caller]
pub(crate) fn check_narrow(
    name: &str,
    render: impl Fn(&mut dyn io::Write, Look) -> io::Result<()>,
) {
    check(name, |out| {
        for width in [60, 40] {
            let mut shown = Vec::new();
            let look = Look {
                width: Some(width),
                ..Look::PLAIN
            };
            render(&mut shown, look)?;
            let shown = String::from_utf8(shown).unwrap();
            for line in shown.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            writeln!(out, "{width} columns:\n{shown}")?;
        }
        Ok(())
    });
}

/// Compares a value's JSON with the golden file.
#[track_caller]
pub(crate) fn check_json(name: &str, value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).unwrap();
    check(name, |out| writeln!(out, "{text}"));
}

//! The committed manual pages are current, and the completions can be made.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

mod common;

use common::{small_trace, xrayctl};

fn pages(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return BTreeMap::new();
    };
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let section = path.extension();
            section.is_some_and(|section| ["1", "5", "8"].iter().any(|known| section == *known))
        })
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn the_committed_manual_pages_are_current() {
    let dir = tempfile::tempdir().unwrap();
    let ran = xrayctl(["man", dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
    let current = pages(dir.path());
    for page in [
        "xrayctl.1",
        "xrayctl-record.1",
        "xrayd.8",
        "xrayd.toml.5",
        "xrayd-policy.5",
    ] {
        assert!(current.contains_key(page), "{page}");
    }
    if std::env::var_os("XRAYD_BLESS").is_some() {
        fs::create_dir_all(&committed).unwrap();
        for name in pages(&committed).keys() {
            fs::remove_file(committed.join(name)).unwrap();
        }
        for (name, page) in &current {
            fs::write(committed.join(name), page).unwrap();
        }
    }
    let stale = current != pages(&committed);
    assert!(
        !stale,
        "docs/man is not current: XRAYD_BLESS=1 cargo test -p xrayctl writes it anew"
    );
}

/// `CRATE: TARGET::MODULE::TEST` means the function TEST in `CRATE/tests/TARGET/MODULE.rs`.
#[test]
fn the_tests_of_the_list_of_scenarios_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = fs::read_to_string(root.join("docs/upstream-scenarios.md")).unwrap();
    let code = list.split('`').skip(1).step_by(2);
    let tests = code.filter_map(|code| {
        let (package, test) = code.split_once(": ")?;
        let (module, test) = test.rsplit_once("::")?;
        Some((package, module.replace("::", "/"), test))
    });
    let (mut known, mut missing) = (0, Vec::new());
    for (package, module, test) in tests.filter(|test| test.0 != "CRATE") {
        let file = root.join(package).join("tests").join(module + ".rs");
        let source = fs::read_to_string(&file).unwrap_or_default();
        if source.contains(&format!("#[test]\nfn {test}() {{")) {
            known += 1;
        } else {
            missing.push(format!("{}: {test}", file.display()));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(known > 100, "{known}");
}

#[test]
fn completions_have_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = xrayctl(["completions", shell]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        for command in ["record", "functions", "convert", "detach"] {
            assert!(ran.out.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn the_documented_json_keys_are_the_ones_printed() {
    let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/xrayctl.md");
    let documented = fs::read_to_string(documented).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let report = xrayctl(["report", trace.to_str().unwrap(), "--json"]).out;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut texts = vec![report];
    for entry in fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    let mut keys = Vec::new();
    for text in texts {
        collect_keys(&serde_json::from_str(&text).unwrap(), &mut keys);
    }
    keys.sort();
    keys.dedup();
    for key in keys {
        assert!(
            documented.contains(&format!("`{key}`")),
            "docs/xrayctl.md does not tell of `{key}`"
        );
    }
}

fn collect_keys(value: &serde_json::Value, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                keys.push(key.clone());
                collect_keys(value, keys);
            }
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| collect_keys(value, keys));
        }
        _ => {}
    }
}

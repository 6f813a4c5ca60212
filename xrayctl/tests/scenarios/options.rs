//! Every option of llvm-xray is one of ours, in every spelling.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Files, leaves, yaml};

/// The options of a command, each with one of its values.
type Options = BTreeMap<String, Option<String>>;

/// The options in `--help-hidden`, which also has the short ones and many of LLVM's own.
fn options(files: &Files, command: &str) -> Options {
    let help = files.theirs_out(&format!("{command} --help-hidden"));
    let mut options = Options::new();
    let mut aliases = Vec::new();
    let mut last = String::new();
    for line in help.lines() {
        let line = line.trim_start();
        let (first, about) = line.split_once(' ').unwrap_or_default();
        if let Some(value) = first.strip_prefix('=') {
            options.insert(last.clone(), Some(value.to_owned()));
        } else if first.starts_with('-') {
            let first = first.trim_start_matches('-');
            last = first.split('=').next().unwrap().to_owned();
            let value = first.contains('=').then(|| "1".to_owned());
            options.insert(last.clone(), value);
            let about = about.trim_start_matches([' ', '-']);
            let alias = about.strip_prefix("Alias ");
            let alias = alias.or_else(|| about.strip_prefix("alias "));
            if let Some((_, of)) = alias.and_then(|alias| alias.split_once('-')) {
                aliases.push((last.clone(), of.trim_start_matches('-').to_owned()));
            }
        }
    }
    // The help mixes dashes and underscores in names.
    let plain = |name: &str| name.replace('_', "-");
    for (alias, of) in aliases {
        let of = options.iter().find(|(name, _)| plain(name) == plain(&of));
        let value = of.unwrap_or_else(|| panic!("{command}: {alias}")).1.clone();
        options.insert(alias, value);
    }
    options
}

#[test]
fn every_option_of_llvm_xray_is_taken() {
    let log = yaml(0, &leaves([(1, 2, 1)]));
    let files = Files::new(&[("log", log)]);
    let commands = [
        ("extract", "map.yaml"),
        ("fdr-dump", "log"),
        ("account", "log"),
        ("stack", "log"),
        ("graph", "log"),
        ("graph-diff", "log log"),
    ];
    let all = commands.map(|(command, _)| options(&files, command));
    // Options that every command has are LLVM's own.
    let names = all.iter().map(|options| options.keys().cloned().collect());
    let common = names
        .reduce(|one: BTreeSet<String>, other| &one & &other)
        .unwrap();
    let mut taken = 0;
    for ((command, inputs), options) in commands.iter().zip(&all) {
        for (name, value) in options.iter().filter(|(name, _)| !common.contains(*name)) {
            let spellings = match value {
                Some(value) => vec![format!("{name}={value}"), format!("{name} {value}")],
                None => ["", "=true", "=false"]
                    .map(|value| format!("{name}{value}"))
                    .into(),
            };
            for spelling in spellings {
                for dashes in ["-", "--"] {
                    let line = format!("{command} {inputs} {dashes}{spelling}");
                    let ran = files.ours(&line);
                    assert_ne!(ran.code, 2, "{line}: {}", ran.err);
                    taken += 1;
                }
            }
        }
    }
    // LLVM 19 has this many options, aliases included. Fewer mean that the form of the help has
    // changed, and nothing was tested.
    assert!(taken > 250, "{taken}");
}

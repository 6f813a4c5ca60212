//! `cargo xtask dependencies`: licences, duplicates and sources of all dependencies, by
//! `deny.toml`.
//!
//! `cargo deny` takes minutes to build, so not every run can have it. This command checks the rules
//! of `deny.toml` by cargo's own data: it costs a second and always runs. Where `cargo-deny` is
//! installed, it runs as well, and finds more: texts of licences, and yanked versions. Advisories
//! need a database from the network, and `cargo deny check advisories` is for users who have it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;
use serde_json::Value;

use crate::shell::{cargo, cargo_program, execute, say};

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Policy {
    targets: Vec<String>,
    /// Licences of all crates.
    allowed: BTreeSet<String>,
    /// Licences of single crates.
    exceptions: BTreeMap<String, BTreeSet<String>>,
    /// Versions that may stand beside another one, such as `getrandom@0.3`.
    skipped: Vec<String>,
}

/// A crate that is built in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    license: String,
    /// `None` for members of the workspace.
    source: Option<String>,
}

/// A part of an SPDX expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word<'a> {
    Open,
    Close,
    And,
    Or,
    /// With its exception: `Apache-2.0 WITH LLVM-exception`.
    Licence(&'a str),
}

pub(crate) fn run() -> Result<()> {
    let path = workspace_dir().join("deny.toml");
    let text = fs::read_to_string(&path).context("cannot read deny.toml")?;
    let policy = Policy::parse(&text)?;
    let packages = packages(&policy.targets)?;
    let problems = policy.problems(&packages);
    if !problems.is_empty() {
        bail!("deny.toml does not allow this:\n{}", problems.join("\n"));
    }
    let count = packages.len();
    say(&format!(
        "licences, duplicates and sources of {count} crates are as deny.toml has them"
    ))?;
    let mut version = Command::new(cargo_program());
    version.args(["deny", "--version"]);
    let version = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return say(
            "cargo-deny is not installed, so texts of licences and yanked versions were not checked; \
                    `cargo install cargo-deny --locked` installs it",
        );
    }
    let mut deny = Command::new(cargo_program());
    deny.current_dir(workspace_dir());
    execute(deny.args(["deny", "--locked", "check", "licenses", "bans", "sources"]))
}

/// All crates that are built for these targets.
fn packages(targets: &[String]) -> Result<BTreeSet<Package>> {
    let mut found = BTreeSet::new();
    for target in targets {
        let mut metadata = cargo("metadata");
        metadata.args(["--format-version", "1", "--filter-platform", target]);
        let output = metadata.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("cargo metadata: {}", output.status);
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let packages = metadata["packages"].as_array().context("no packages")?;
        // Cargo lists crates of other platforms as well. The graph has those that are built.
        let nodes = metadata["resolve"]["nodes"]
            .as_array()
            .context("no graph")?;
        let built: BTreeSet<_> = nodes
            .iter()
            .filter_map(|node| node["id"].as_str())
            .collect();
        let is_built =
            |package: &&Value| package["id"].as_str().is_some_and(|id| built.contains(id));
        for package in packages.iter().filter(is_built) {
            let text = |key: &str| package[key].as_str().map(str::to_owned);
            found.insert(Package {
                name: text("name").context("a package without a name")?,
                version: text("version").context("a package without a version")?,
                license: text("license").unwrap_or_default(),
                source: text("source"),
            });
        }
    }
    Ok(found)
}

// === impl Policy ===

impl Policy {
    /// Reads the needed part of `deny.toml`, whose lists must be written as they are there.
    fn parse(text: &str) -> Result<Self> {
        let list = |section: &str, key: &str| -> Result<Vec<Vec<String>>> {
            let missing = || format!("deny.toml has no {key} in [{section}]");
            let (_, rest) = text
                .split_once(&format!("[{section}]\n"))
                .with_context(missing)?;
            let rest = rest.split("\n[").next().unwrap_or_default();
            let (_, rest) = rest
                .split_once(&format!("{key} = ["))
                .with_context(missing)?;
            // A list of texts ends in its line, a list of tables in a line of its own.
            let end = if rest.starts_with('\n') { "\n]" } else { "]\n" };
            let (list, _) = rest.split_once(end).with_context(missing)?;
            let rows = list.lines().map(quoted);
            // The other rows are empty, or comments.
            Ok(rows.filter(|row| !row.is_empty()).collect())
        };
        let first = |rows: Vec<Vec<String>>| rows.into_iter().flatten();
        let exceptions = list("licenses", "exceptions")?.into_iter();
        let exceptions = exceptions.map(|row| {
            let (name, licences) = row.split_first().context("an empty exception")?;
            Ok((name.clone(), licences.iter().cloned().collect()))
        });
        let skipped = list("bans", "skip")?.into_iter();
        Ok(Self {
            targets: first(list("graph", "targets")?).collect(),
            allowed: first(list("licenses", "allow")?).collect(),
            exceptions: exceptions.collect::<Result<_>>()?,
            skipped: skipped.filter_map(|row| row.into_iter().next()).collect(),
        })
    }

    /// The violations, a line for each.
    fn problems(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        // Cargo has one registry by itself. Another one would have to be named.
        let mut registries = BTreeSet::new();
        for package in packages {
            let Package {
                name,
                version,
                license,
                source,
            } = package;
            match source.as_deref() {
                None => {}
                Some(source) if source.starts_with("registry+") => {
                    registries.insert(source);
                }
                Some(source) => problems.push(format!("{name} {version} comes from {source}")),
            }
            let own = self.exceptions.get(name);
            let allows = |licence: &str| {
                self.allowed.contains(licence) || own.is_some_and(|own| own.contains(licence))
            };
            match satisfied(license, allows) {
                Some(true) => {}
                Some(false) => problems.push(format!("{name} {version}: licence {license}")),
                None => problems.push(format!("{name} {version}: no licence in '{license}'")),
            }
            let is_skipped = |skip: &String| {
                let (skipped, of) = skip.split_once('@').unwrap_or((skip, ""));
                skipped == name && is_version(version, of)
            };
            if !self.skipped.iter().any(is_skipped) {
                versions.entry(name).or_default().push(version);
            }
        }
        if registries.len() > 1 {
            problems.push(format!(
                "crates come from several registries: {registries:?}"
            ));
        }
        let several = versions
            .into_iter()
            .filter(|(_, versions)| versions.len() > 1);
        problems.extend(several.map(|(name, versions)| {
            format!(
                "{name} is there in several versions: {}",
                versions.join(", ")
            )
        }));
        problems
    }
}

/// True if `version` is `of`, or one of its minor or patch versions.
fn is_version(version: &str, of: &str) -> bool {
    let rest = version.strip_prefix(of);
    of.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The quoted texts of a line, without reasons.
fn quoted(line: &str) -> Vec<String> {
    let line = line.split("reason =").next().unwrap_or_default();
    let line = line.split('#').next().unwrap_or_default();
    line.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// True if the allowed licences meet an SPDX expression; `None` if it is no expression. `A/B`, as
/// old crates have it, is `A OR B`.
fn satisfied(expression: &str, allows: impl Fn(&str) -> bool + Copy) -> Option<bool> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let spaced = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    // An exception belongs to its licence.
    let joined = spaced.replace(" WITH ", "+WITH+");
    let mut words = Vec::new();
    for word in joined.split(' ').filter(|word| !word.is_empty()) {
        words.push(match word {
            "(" => Word::Open,
            ")" => Word::Close,
            "AND" => Word::And,
            "OR" => Word::Or,
            licence => Word::Licence(licence),
        });
    }
    let mut words = words.into_iter().peekable();
    let met = any_of(&mut words, allows)?;
    words.next().is_none().then_some(met)
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<Word<'a>>>;

fn any_of(words: &mut Words<'_>, allows: impl Fn(&str) -> bool + Copy) -> Option<bool> {
    let mut met = all_of(words, allows)?;
    while words.next_if_eq(&Word::Or).is_some() {
        met |= all_of(words, allows)?;
    }
    Some(met)
}

fn all_of(words: &mut Words<'_>, allows: impl Fn(&str) -> bool + Copy) -> Option<bool> {
    let mut met = single(words, allows)?;
    while words.next_if_eq(&Word::And).is_some() {
        met &= single(words, allows)?;
    }
    Some(met)
}

fn single(words: &mut Words<'_>, allows: impl Fn(&str) -> bool + Copy) -> Option<bool> {
    match words.next()? {
        Word::Licence(licence) => Some(allows(&licence.replace("+WITH+", " WITH "))),
        Word::Open => {
            let met = any_of(words, allows)?;
            words.next_if_eq(&Word::Close)?;
            Some(met)
        }
        Word::Close | Word::And | Word::Or => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"# About.
[graph]
targets = ["x86_64-unknown-linux-gnu"]

[licenses]
# Some.
allow = ["MIT", "Zlib"]
exceptions = [
    # About it.
    { crate = "odd", allow = ["CDDL-1.0"] },
]

[bans]
skip = [
    { crate = "twice@0.3", reason = "\"quoted\", for another" },
]
"#;

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: license.to_owned(),
            source: Some("registry+https://registry.example".to_owned()),
        }
    }

    #[test]
    fn a_crate_is_refused_for_its_licence_its_source_or_another_version() {
        let policy = Policy::parse(POLICY).unwrap();
        assert_eq!(policy.targets, ["x86_64-unknown-linux-gnu"]);
        let check = |packages: &[Package], expected: &[&str]| {
            let packages = packages.iter().cloned().collect();
            assert_eq!(policy.problems(&packages), expected);
        };
        check(
            &[
                package("odd", "1.0.0", "CDDL-1.0"),
                package("a", "1.0.0", "MIT"),
            ],
            &[],
        );
        check(
            &[package("even", "1.0.0", "CDDL-1.0")],
            &["even 1.0.0: licence CDDL-1.0"],
        );
        check(&[package("a", "1.0.0", "")], &["a 1.0.0: no licence in ''"]);
        let git = Package {
            source: Some("git+https://host/repository".to_owned()),
            ..package("a", "1.0.0", "MIT")
        };
        check(&[git], &["a 1.0.0 comes from git+https://host/repository"]);
        let other = Package {
            source: Some("registry+https://other.example".to_owned()),
            ..package("a", "1.0.0", "MIT")
        };
        let both = [other, package("b", "1.0.0", "MIT")];
        let expected = r#"crates come from several registries: {"registry+https://other.example", "registry+https://registry.example"}"#;
        check(&both, &[expected]);
        let twice = |version| package("twice", version, "MIT");
        check(&[twice("0.3.7"), twice("0.4.1")], &[]);
        check(
            &[twice("0.30.0"), twice("0.4.1")],
            &["twice is there in several versions: 0.30.0, 0.4.1"],
        );
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for (expression, expected) in [
            ("MIT", Some(true)),
            ("GPL-3.0", Some(false)),
            ("MIT OR GPL-3.0", Some(true)),
            ("GPL-3.0/MIT", Some(true)),
            ("GPL-3.0 / MIT", Some(true)),
            ("MIT AND GPL-3.0", Some(false)),
            ("(MIT OR GPL-3.0) AND Zlib", Some(true)),
            ("MIT OR GPL-3.0 AND BSD", Some(true)),
            ("MIT WITH exception", Some(false)),
            ("GPL-3.0 WITH exception OR Zlib", Some(true)),
            ("(MIT", None),
            ("MIT OR", None),
            ("MIT Zlib", None),
            ("", None),
        ] {
            let allows = |licence: &str| ["MIT", "Zlib"].contains(&licence);
            assert_eq!(satisfied(expression, allows), expected, "{expression}");
        }
    }
}

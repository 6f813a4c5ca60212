//! Conditions on processes, as policies and rules of access have them: globs of units, programs and
//! other facts, and users.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use nix::unistd::User;

use crate::{
    parse,
    target::ProcessFacts,
    toml_file::{Located, Table, TomlText},
};

/// The longest glob, in bytes.
const LONGEST_GLOB: usize = 4096;
/// The most globs of one key.
const MOST_GLOBS: usize = 256;

/// A condition on processes. All keys that it has must hold. A key holds if one of its globs
/// matches.
#[derive(Debug, Clone, Default)]
pub struct ProcessCondition {
    keys: Vec<(Key, Vec<GlobSet>)>,
    /// Users by their ids; empty for all.
    users: Vec<u32>,
}

/// What a glob is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Unit,
    Cgroup,
    Exe,
    Command,
    Container,
    BuildId,
}

// === impl Key ===

impl Key {
    const ALL: [(&'static str, Self); 6] = [
        ("unit", Self::Unit),
        ("cgroup", Self::Cgroup),
        ("exe", Self::Exe),
        ("command", Self::Command),
        ("container", Self::Container),
        ("build_id", Self::BuildId),
    ];

    /// `None` for a process without a unit, or outside of containers.
    fn of(self, facts: &ProcessFacts) -> Option<&str> {
        match self {
            Self::Unit => Some(facts.unit.as_str()).filter(|unit| !unit.is_empty()),
            Self::Cgroup => Some(&facts.cgroup),
            Self::Exe => Some(&facts.exe),
            Self::Command => Some(&facts.command),
            Self::Container => container_in(&facts.cgroup),
            Self::BuildId => facts.build_id.as_deref(),
        }
    }

    /// True if `*` does not match `/`, and `**` does.
    const fn is_path(self) -> bool {
        matches!(self, Self::Cgroup | Self::Exe)
    }
}

/// The id of the container in a control group's path.
fn container_in(cgroup: &str) -> Option<&str> {
    cgroup.split('/').rev().find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = part.rsplit('-').next()?;
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then_some(id)
    })
}

// === impl ProcessCondition ===

impl ProcessCondition {
    /// Reads the keys of a condition from the table `[match]`, and leaves its other keys. `None` if
    /// one of them has a mistake, or if there is none.
    pub(crate) fn read(file: &TomlText<'_>, table: &mut Table<'_, '_>) -> Option<Self> {
        let (at, mut is_right) = (table.at, true);
        let names = Key::ALL.iter().map(|(name, _)| *name).chain(["user"]);
        let has_any = names.into_iter().any(|name| table.has(name));
        // An empty list would be for no process, or for all.
        let is_empty = |name: &str, is_there: bool, count: usize| {
            if is_there && count == 0 {
                file.mistake(at, format!("{name} has no value"));
            }
            is_there && count == 0
        };
        let mut keys = Vec::new();
        for (name, key) in Key::ALL {
            let is_there = table.has(name);
            let texts = table.strings(name);
            is_right &= !is_empty(name, is_there, texts.len());
            if let Some(text) = texts.get(MOST_GLOBS) {
                file.mistake(text.at, format!("{name} has more than {MOST_GLOBS} globs"));
                is_right = false;
            }
            let count = texts.len();
            let globs = texts.into_iter().take(MOST_GLOBS);
            let globs: Vec<GlobSet> = globs.filter_map(|text| glob(file, key, text)).collect();
            is_right &= globs.len() == count;
            if count > 0 {
                keys.push((key, globs));
            }
        }
        let is_there = table.has("user");
        let names = table.strings("user");
        is_right &= !is_empty("user", is_there, names.len());
        let count = names.len();
        let users = names.into_iter().filter_map(|name| user_id(file, name));
        let users: Vec<u32> = users.collect();
        is_right &= users.len() == count;
        if !has_any {
            let what = "[match] has no condition: exe = \"**\" is for every process";
            file.mistake(at, what);
            is_right = false;
        }
        is_right.then_some(Self { keys, users })
    }

    /// True if the condition is about build ids, which are in the programs' files.
    pub fn needs_build_id(&self) -> bool {
        self.keys.iter().any(|(key, _)| *key == Key::BuildId)
    }

    /// True if the condition is about units.
    pub(crate) fn needs_unit(&self) -> bool {
        self.keys.iter().any(|(key, _)| *key == Key::Unit)
    }

    /// True if a process meets the condition.
    pub fn matches(&self, facts: &ProcessFacts) -> bool {
        let mut keys = self.keys.iter();
        let is_of_user = self.users.is_empty() || self.users.contains(&facts.user);
        is_of_user
            && keys.all(|(key, globs)| {
                let text = key.of(facts);
                text.is_some_and(|text| globs.iter().any(|glob| glob.is_match(text)))
            })
    }
}

fn glob(file: &TomlText<'_>, key: Key, text: Located<String>) -> Option<GlobSet> {
    let Located { value, at } = text;
    file.check(at, parse::pattern(&value))?;
    if value.len() > LONGEST_GLOB {
        file.mistake(at, format!("a glob has up to {LONGEST_GLOB} bytes"));
        return None;
    }
    // `docker ps` shows the begin of an id, and so do many others of build ids.
    let value = match key {
        Key::Container | Key::BuildId if !value.ends_with('*') => value + "*",
        _ => value,
    };
    let glob = GlobBuilder::new(&value)
        .literal_separator(key.is_path())
        .build()
        .map_err(|error| error.kind().to_string());
    // A set tells if the glob is too large, and a single glob panics then.
    let set = GlobSetBuilder::new().add(file.check(at, glob)?).build();
    file.check(at, set.map_err(|error| error.kind().to_string()))
}

/// The id of a user, by name or number.
pub(crate) fn user_id(file: &TomlText<'_>, name: Located<String>) -> Option<u32> {
    let Located { value, at } = name;
    if let Ok(id) = value.parse() {
        return Some(id);
    }
    match User::from_name(&value) {
        Ok(Some(user)) => Some(user.uid.as_raw()),
        Ok(None) => {
            file.mistake(at, format!("there is no user {value:?}"));
            None
        }
        Err(error) => {
            file.mistake(at, format!("cannot look up user {value:?}: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(text: &str) -> ProcessCondition {
        let file = TomlText::new(text);
        let condition = ProcessCondition::read(&file, &mut file.table());
        let mistakes = file.mistakes();
        condition.unwrap_or_else(|| panic!("{mistakes:?}"))
    }

    #[test]
    fn every_key_must_hold_and_one_glob_of_each() {
        let id = "0123456789abcdef".repeat(4);
        let server = ProcessFacts {
            unit: "checkout@7.service".to_owned(),
            cgroup: format!("/kubepods.slice/pod7/cri-containerd-{id}.scope"),
            exe: "/opt/checkout/bin/server".to_owned(),
            command: "server --port 80".to_owned(),
            user: 33,
            build_id: Some("9f2c01".to_owned()),
        };
        for (text, expected) in [
            ("unit = \"checkout@*.service\"", true),
            ("unit = [\"x\", \"checkout@?.service\"]", true),
            ("unit = \"checkout@*.service\"\nuser = \"34\"", false),
            ("user = [\"34\", \"33\"]", true),
            ("exe = \"/opt/*\"", false),
            ("exe = \"/opt/**\"", true),
            ("exe = \"/opt/checkout/bin/*\"", true),
            ("exe = \"server\"", false),
            ("cgroup = \"/kubepods.slice/**\"", true),
            ("cgroup = \"/kubepods.slice\"", false),
            ("container = \"0123456789ab\"", true),
            ("container = \"123456789ab\"", false),
            ("command = \"*--port 80*\"", true),
            ("command = \"server\"", false),
            ("build_id = [\"00\", \"9f2c\"]", true),
            ("build_id = \"9f2c02\"", false),
        ] {
            assert_eq!(condition(text).matches(&server), expected, "{text}");
        }
        // An empty list.
        for text in ["unit = []", "user = []\nexe = \"/a\""] {
            let file = TomlText::new(text);
            assert!(ProcessCondition::read(&file, &mut file.table()).is_none());
            assert_eq!(file.mistakes().len(), 1, "{text}");
        }
        // A process without a unit.
        let plain = ProcessFacts::default();
        for key in ["unit", "container", "build_id"] {
            assert!(
                !condition(&format!("{key} = \"*\"")).matches(&plain),
                "{key}"
            );
        }
        // A glob that is too large.
        let braces = format!("exe = \"{}a{}\"", "{".repeat(400), "}".repeat(400));
        let file = TomlText::new(&braces);
        assert!(ProcessCondition::read(&file, &mut file.table()).is_none());
        assert_eq!(file.mistakes().len(), 1);
    }
}

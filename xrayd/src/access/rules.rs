//! The rules of a file of access, and what they allow a subject.

use nix::unistd::Group;

use super::verb::{Verb, Verbs};
use crate::{
    matching::{ProcessCondition, user_id},
    target::ProcessFacts,
    toml_file::{Item, Located, Mistake, Table, TomlText},
};

/// The most rules of a file.
const MOST_RULES: usize = 256;

/// The rules of a file.
#[derive(Debug, Default)]
pub struct Rules(Vec<Rule>);

/// A rule: an `[[allow]]` of a file.
#[derive(Debug)]
pub struct Rule {
    /// The line on which it begins, from 1.
    pub line: usize,
    users: Vec<u32>,
    groups: Vec<u32>,
    /// True if callers that a sandbox confines have the rights, too.
    includes_confined: bool,
    /// The rights that it gives.
    pub verbs: Verbs,
    /// The processes of its rights. `None` for rights that are not about processes.
    condition: Option<ProcessCondition>,
}

/// A user and its groups.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The user.
    pub user: u32,
    /// All its groups.
    pub groups: &'a [u32],
    /// True if a sandbox confines the process.
    pub is_confined: bool,
}

/// The rights of a subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Granted {
    /// What it may do.
    pub verbs: Verbs,
    /// The line of the first rule that gives the right in question. 0: no rule does.
    pub line: usize,
}

// === impl Rules ===

impl Rules {
    /// Reads a file of rules. Nothing outside of the text matters but the names of users and
    /// groups.
    ///
    /// # Errors
    /// All mistakes, in the order of their places.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let file = TomlText::new(text);
        let mut table = file.table();
        let items = table.items("allow");
        if let Some(item) = items.get(MOST_RULES) {
            file.mistake(item.at(), format!("there are more than {MOST_RULES} rules"));
        }
        let rules = items.into_iter().take(MOST_RULES);
        let rules: Vec<Rule> = rules
            .filter_map(|item| match item {
                Item::Table(table) => Rule::read(&file, table),
                Item::Text(text) => {
                    file.mistake(text.at, "a rule is a table: [[allow]]");
                    None
                }
            })
            .collect();
        table.finish();
        match file.mistakes() {
            mistakes if mistakes.is_empty() => Ok(Self(rules)),
            mistakes => Err(mistakes),
        }
    }

    /// True if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules for a subject.
    pub fn of<'a>(&'a self, subject: Subject<'a>) -> impl Iterator<Item = &'a Rule> {
        self.0.iter().filter(move |rule| rule.is_for(subject))
    }

    /// The rights of a subject that are not about processes, and the rule that gives this one.
    pub fn about_daemon(&self, subject: Subject<'_>, verb: Verb) -> Granted {
        let rules = self.of(subject);
        granted(rules.filter(|rule| rule.condition.is_none()), verb)
    }

    /// The rights of a subject to a process, and the rule that gives this one.
    pub fn about_process(&self, subject: Subject<'_>, facts: &ProcessFacts, verb: Verb) -> Granted {
        granted(self.of(subject).filter(|rule| rule.covers(facts)), verb)
    }
}

fn granted<'a>(rules: impl Iterator<Item = &'a Rule>, verb: Verb) -> Granted {
    rules.fold(Granted::default(), |granted, rule| Granted {
        verbs: granted.verbs.union(rule.verbs),
        line: match granted.line {
            0 if rule.verbs.has(verb) => rule.line,
            line => line,
        },
    })
}

// === impl Rule ===

impl Rule {
    fn read(file: &TomlText<'_>, mut table: Table<'_, '_>) -> Option<Self> {
        let at = table.at;
        let subjects = match table.table("to") {
            Some(to) => subjects(file, to),
            None => {
                let what = "to is missing. An example: to = { group = \"oncall\" }";
                file.mistake(at, what);
                None
            }
        };
        let names = table.strings("verbs");
        let count = names.len();
        let read = names.into_iter().filter_map(|name| {
            let verb: Option<Verb> = file.check(name.at, name.value.parse());
            verb.map(|verb| (verb, name.at))
        });
        let read: Vec<(Verb, usize)> = read.collect();
        let mut verbs = Verbs::default();
        for (verb, _) in &read {
            verbs.add(*verb);
        }
        if count == 0 {
            let what = "verbs is missing. An example: verbs = [\"profile\"]";
            file.mistake(at, what);
        }
        let (condition, is_right) = match table.table("match") {
            Some(mut its) => {
                let condition = condition(file, &mut its);
                its.finish();
                let is_right = condition.is_some();
                (condition, is_right)
            }
            None => (None, true),
        };
        table.finish();
        let is_mixed = read.iter().find(|(verb, _)| {
            // With a wrong [match], there is one.
            verb.is_about_processes() != (condition.is_some() || !is_right)
        });
        if let Some((verb, at)) = is_mixed {
            let what = match verb.is_about_processes() {
                true => {
                    format!("{verb} needs processes: match = {{ unit = \"checkout@*.service\" }}")
                }
                false => format!("{verb} is not about processes: its rule has no match"),
            };
            file.mistake(*at, what);
        }
        let (users, groups, includes_confined) = subjects?;
        let is_right = is_right && is_mixed.is_none() && count > 0 && read.len() == count;
        is_right.then_some(Self {
            line: file.line(at),
            users,
            groups,
            includes_confined,
            verbs,
            condition,
        })
    }

    fn is_for(&self, subject: Subject<'_>) -> bool {
        let mut groups = self.groups.iter();
        (self.includes_confined || !subject.is_confined)
            && (self.users.contains(&subject.user)
                || groups.any(|group| subject.groups.contains(group)))
    }

    fn covers(&self, facts: &ProcessFacts) -> bool {
        let Some(condition) = &self.condition else {
            return false;
        };
        // Each user can make units with any name.
        let is_forged = condition.needs_unit() && facts.is_in_unit_of_user();
        !is_forged && condition.matches(facts)
    }
}

/// Reads the table `to`: users, groups, and whether callers in a sandbox are among them.
fn subjects(file: &TomlText<'_>, mut to: Table<'_, '_>) -> Option<(Vec<u32>, Vec<u32>, bool)> {
    let at = to.at;
    let (names, group_names) = (to.strings("user"), to.strings("group"));
    let count = names.len() + group_names.len();
    let confined = to.boolean("confined").is_some_and(|it| it.value);
    to.finish();
    let users = names.into_iter().filter_map(|name| user_id(file, name));
    let users: Vec<u32> = users.collect();
    let groups = group_names
        .into_iter()
        .filter_map(|name| group_id(file, name));
    let groups: Vec<u32> = groups.collect();
    if count == 0 {
        file.mistake(at, "to has no user and no group");
    }
    (count > 0 && users.len() + groups.len() == count).then_some((users, groups, confined))
}

fn condition(file: &TomlText<'_>, table: &mut Table<'_, '_>) -> Option<ProcessCondition> {
    let condition = ProcessCondition::read(file, table)?;
    // They are in the programs' files, which may not answer, and a caller waits.
    if condition.needs_build_id() {
        file.mistake(table.at, "a rule of access cannot have build_id");
        return None;
    }
    Some(condition)
}

/// The id of a group, by name or number.
fn group_id(file: &TomlText<'_>, name: Located<String>) -> Option<u32> {
    let Located { value, at } = name;
    if let Ok(id) = value.parse() {
        return Some(id);
    }
    match Group::from_name(&value) {
        Ok(Some(group)) => Some(group.gid.as_raw()),
        Ok(None) => {
            file.mistake(at, format!("there is no group {value:?}"));
            None
        }
        Err(error) => {
            file.mistake(at, format!("cannot look up group {value:?}: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [[allow]]
        to    = { group = "7000" }
        verbs = ["profile"]
        match = { unit = "checkout@*.service", user = "33" }

        [[allow]]
        to    = { user = ["1000", "1001"] }
        verbs = "arguments"
        match = { exe = "/opt/**" }

        [[allow]]
        to    = { user = "990", confined = true }
        verbs = ["recordings"]
    "#;

    fn subject(user: u32, groups: &[u32]) -> Subject<'_> {
        Subject {
            user,
            groups,
            is_confined: false,
        }
    }

    fn checkout() -> ProcessFacts {
        ProcessFacts {
            unit: "checkout@3.service".to_owned(),
            exe: "/opt/checkout".to_owned(),
            user: 33,
            ..ProcessFacts::default()
        }
    }

    #[test]
    fn rights_of_several_rules_add_up_and_all_else_is_denied() {
        let rules = Rules::parse(RULES).unwrap();
        let rights = |user, groups: &[u32], facts: &ProcessFacts| {
            rules.about_process(subject(user, groups), facts, Verb::Arguments)
        };
        let both = rights(1000, &[5, 7000], &checkout());
        assert_eq!(both.verbs.to_string(), "list, count, profile, arguments");
        assert_eq!(both.line, 7);
        let group = rights(5, &[7000], &checkout());
        assert_eq!(group.verbs.to_string(), "list, count, profile");
        let user = rights(1001, &[], &checkout());
        assert_eq!(
            (user.verbs.to_string(), user.line),
            ("arguments".to_owned(), 7)
        );
        // The id of a group is no user's, and that of a user is no group's.
        assert_eq!(rights(7000, &[1000], &checkout()), Granted::default());
        let of_manager = ProcessFacts {
            cgroup: "/user.slice/user-5.slice/user@5.service/app.slice/checkout@3.service".into(),
            ..checkout()
        };
        assert_eq!(rights(5, &[7000], &of_manager), Granted::default());
        let other_user = ProcessFacts {
            user: 0,
            ..checkout()
        };
        assert_eq!(rights(5, &[7000], &other_user), Granted::default());
        assert_eq!(
            rights(5, &[7000], &ProcessFacts::default()),
            Granted::default()
        );
        let none = rules.about_daemon(subject(1000, &[7000]), Verb::Policy);
        assert_eq!(none, Granted::default());
    }

    #[test]
    fn a_sandbox_keeps_rights_away_unless_the_rule_says_otherwise() {
        let rules = Rules::parse(RULES).unwrap();
        let confined = |user| Subject {
            is_confined: true,
            ..subject(user, &[7000])
        };
        let relay = rules.about_daemon(confined(990), Verb::Recordings);
        assert!(relay.verbs.has(Verb::Recordings) && !relay.verbs.has(Verb::Policy));
        assert_eq!(
            rules.about_process(confined(1000), &checkout(), Verb::Arguments),
            Granted::default()
        );
    }

    #[test]
    fn each_mistake_has_its_place() {
        let text = r#"
[[allow]]
to = { users = "0" }
verbs = ["spy"]
match = { unit = "a[" }
[[allow]]
verbs = ["trace", "admin"]
match = { user = "0", build_id = "9f" }
[[allow]]
to = { group = "no-such-group-here" }
verbs = ["list"]
[[allow]]
to = { user = "0" }
verbs = ["policy"]
match = { user = "0" }
[[deny]]
"#;
        let found = Rules::parse(text).unwrap_err();
        let found: Vec<String> = found.iter().map(Mistake::to_string).collect();
        let starts = [
            "line 3, column 6: to has no user and no group",
            "line 3, column 8: unknown key \"users\"; did you mean user?",
            "line 4, column 10: there is no verb \"spy\"; the verbs are list, count, ",
            "line 5, column 18: ",
            "line 6, column 1: to is missing",
            "line 7, column 19: admin is not about processes: its rule has no match",
            "line 8, column 9: a rule of access cannot have build_id",
            "line 10, column 16: there is no group \"no-such-group-here\"",
            "line 11, column 10: list needs processes: match = { unit = ",
            "line 14, column 10: policy is not about processes: its rule has no match",
            "line 16, column 3: unknown key \"deny\"",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}, not {start}");
        }
    }
}

//! Files of TOML that users write: their values with the places of those, and all mistakes of a
//! file at once.
//!
//! A reader takes the keys that it knows out of each table. What it takes and cannot use is a
//! mistake, and so is every key that it does not take.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env, fmt, fs,
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use toml::{
    de::{DeTable, DeValue},
    value::{Datetime, Offset},
};

/// The longest file, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// The most mistakes of a file that are kept.
const MOST_MISTAKES: usize = 100;
/// The longest key that is compared with those that were meant, in bytes.
const LONGEST_KEY: usize = 64;
/// The most edits between a key and the one that was meant.
const MOST_EDITS: usize = 3;

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line, from 1 on.
    pub line: usize,
    /// The column in characters, from 1 on.
    pub column: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A value, and its place in the file, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

/// The text of a file, and its mistakes so far.
#[derive(Debug)]
pub(crate) struct TomlText<'t> {
    text: &'t str,
    mistakes: RefCell<Vec<(usize, String)>>,
}

/// A table of which some keys were taken.
#[derive(Debug)]
pub(crate) struct Table<'f, 't> {
    file: &'f TomlText<'t>,
    /// The place of the table.
    pub(crate) at: usize,
    /// The keys that were not taken, with their places.
    entries: BTreeMap<String, (usize, Value<'t>)>,
    /// The keys that were asked for.
    known: Vec<String>,
}

/// A part of a list of texts and tables.
#[derive(Debug)]
pub(crate) enum Item<'f, 't> {
    Text(Located<String>),
    Table(Table<'f, 't>),
}

type Value<'t> = Located<DeValue<'t>>;

// === impl Mistake ===

impl Mistake {
    /// A mistake of a whole file, which its first line stands for.
    pub(crate) fn of_file(what: impl Into<String>) -> Self {
        Self {
            line: 1,
            column: 1,
            what: what.into(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, what } = self;
        write!(f, "line {line}, column {column}: {what}")
    }
}

// === impl TomlText ===

impl<'t> TomlText<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            text,
            mistakes: RefCell::default(),
        }
    }

    /// The outermost table. What is no TOML is a mistake, and the rest is there.
    pub(crate) fn table(&self) -> Table<'_, 't> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.mistake(at, error.message());
        }
        Table::new(self, 0, table.into_inner())
    }

    /// The line of a place, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        place(self.text, at).0
    }

    /// Notes a mistake.
    pub(crate) fn mistake(&self, at: usize, what: impl Into<String>) {
        let mut mistakes = self.mistakes.borrow_mut();
        if mistakes.len() < MOST_MISTAKES {
            mistakes.push((at, what.into()));
        }
    }

    /// Notes the error of a result.
    pub(crate) fn check<T, E: fmt::Display>(&self, at: usize, result: Result<T, E>) -> Option<T> {
        result
            .map_err(|error| self.mistake(at, error.to_string()))
            .ok()
    }

    /// A text that `read` understands. `None` if it is not there, or if it has a mistake.
    pub(crate) fn parsed<T>(
        &self,
        text: Option<Located<String>>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = text?;
        self.check(text.at, read(&text.value))
    }

    /// All mistakes, in the order of their places.
    pub(crate) fn mistakes(self) -> Vec<Mistake> {
        let mistakes = self.mistakes.into_inner().into_iter();
        let mut mistakes: Vec<Mistake> = mistakes
            .map(|(at, what)| {
                let (line, column) = place(self.text, at);
                Mistake { line, column, what }
            })
            .collect();
        mistakes.sort();
        mistakes.dedup();
        mistakes
    }
}

/// The line and the column of a byte.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.char_indices().take_while(|(start, _)| *start < at);
    before.fold((1, 1), |(line, column), (_, character)| match character {
        '\n' => (line + 1, 1),
        _ => (line, column + 1),
    })
}

// === impl Table ===

impl<'f, 't> Table<'f, 't> {
    fn new(file: &'f TomlText<'t>, at: usize, table: DeTable<'t>) -> Self {
        let entries = table.into_iter().map(|(key, value)| {
            let (place, at) = (key.span().start, value.span().start);
            let value = value.into_inner();
            (
                key.into_inner().into_owned(),
                (place, Located { value, at }),
            )
        });
        Self {
            file,
            at,
            entries: entries.collect(),
            known: Vec::new(),
        }
    }

    /// Takes a value of any kind.
    fn take(&mut self, key: &str) -> Option<Value<'t>> {
        self.known.push(key.to_owned());
        self.entries.remove(key).map(|(_, value)| value)
    }

    /// Takes a value that `read` understands; `wanted` is what it has to be.
    fn take_as<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(DeValue<'t>) -> Option<T>,
    ) -> Option<Located<T>> {
        let Located { value, at } = self.take(key)?;
        match read(value) {
            Some(value) => Some(Located { value, at }),
            None => {
                self.file.mistake(at, format!("{key} must be {wanted}"));
                None
            }
        }
    }

    /// True if the table has this key, and it was not taken.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// A text.
    pub(crate) fn string(&mut self, key: &str) -> Option<Located<String>> {
        self.take_as(key, "a text in quotation marks", string_of)
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, key: &str) -> Option<Located<i64>> {
        self.take_as(key, "a whole number", |value| match value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        })
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, key: &str) -> Option<Located<bool>> {
        self.take_as(key, "true or false", |value| match value {
            DeValue::Boolean(value) => Some(value),
            _ => None,
        })
    }

    /// A text, a whole number, or `true` or `false`, as its text.
    pub(crate) fn scalar(&mut self, key: &str) -> Option<Located<String>> {
        self.take_as(key, "a text, a number, or true or false", scalar_of)
    }

    /// A text, or a list of texts. Each has its place.
    pub(crate) fn strings(&mut self, key: &str) -> Vec<Located<String>> {
        let wanted = "a text in quotation marks, or a list of texts";
        let items = self.take(key).map(list_of).unwrap_or_default();
        let texts = items.into_iter().filter_map(|Located { value, at }| {
            let text = string_of(value).map(|value| Located { value, at });
            if text.is_none() {
                self.file.mistake(at, format!("{key} must be {wanted}"));
            }
            text
        });
        texts.collect()
    }

    /// A text or a table, or a list of these.
    pub(crate) fn items(&mut self, key: &str) -> Vec<Item<'f, 't>> {
        let file = self.file;
        let items = self.take(key).map(list_of).unwrap_or_default();
        let items = items
            .into_iter()
            .filter_map(|Located { value, at }| match value {
                DeValue::Table(table) => Some(Item::Table(Table::new(file, at, table))),
                value => {
                    let text = string_of(value).map(|value| Item::Text(Located { value, at }));
                    if text.is_none() {
                        file.mistake(
                            at,
                            format!("{key} must have texts in quotation marks, or tables"),
                        );
                    }
                    text
                }
            });
        items.collect()
    }

    /// A moment with its time zone, as `2027-01-31T00:00:00Z`, in seconds since the Unix epoch.
    pub(crate) fn moment(&mut self, key: &str) -> Option<Located<u64>> {
        let wanted = "a moment with its time zone, such as 2027-01-31T00:00:00Z";
        self.take_as(key, wanted, |value| match value {
            DeValue::Datetime(moment) => seconds_of(moment),
            DeValue::String(text) => seconds_of(text.parse().ok()?),
            _ => None,
        })
    }

    /// A table.
    pub(crate) fn table(&mut self, key: &str) -> Option<Table<'f, 't>> {
        let file = self.file;
        let table = self.take_as(key, "a table", |value| match value {
            DeValue::Table(table) => Some(table),
            _ => None,
        })?;
        Some(Table::new(file, table.at, table.value))
    }

    /// Notes each key that was not taken.
    pub(crate) fn finish(self) {
        for (key, (at, _)) in &self.entries {
            // Users paste longer ones.
            let known = self.known.iter().filter(|_| key.len() <= LONGEST_KEY);
            let nearest = known.map(|known| (strsim::damerau_levenshtein(known, key), known));
            let nearest =
                nearest.filter(|(edits, known)| *edits <= MOST_EDITS && *edits < known.len());
            let meant = nearest
                .min()
                .map(|(_, known)| format!("; did you mean {known}?"));
            let what = format!("unknown key {key:?}{}", meant.unwrap_or_default());
            self.file.mistake(*at, what);
        }
    }
}

// === impl Item ===

impl Item<'_, '_> {
    /// Its place.
    pub(crate) fn at(&self) -> usize {
        match self {
            Self::Text(text) => text.at,
            Self::Table(table) => table.at,
        }
    }
}

/// The parts of a list, or the value alone.
fn list_of(value: Value<'_>) -> Vec<Value<'_>> {
    match value.value {
        DeValue::Array(items) => items
            .into_iter()
            .map(|item| Located {
                at: item.span().start,
                value: item.into_inner(),
            })
            .collect(),
        other => vec![Located {
            value: other,
            at: value.at,
        }],
    }
}

/// Seconds since the Unix epoch. `None` for a moment before it, and for one without a time zone.
fn seconds_of(moment: Datetime) -> Option<u64> {
    let (date, time) = (moment.date?, moment.time?);
    let ahead = match moment.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes) * 60,
    };
    // Days of the Gregorian calendar, with years that begin in March, so that a leap day is the
    // last one.
    let (year, month) = (i64::from(date.year), i64::from(date.month));
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(date.day) - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    let second = i64::from(time.second.unwrap_or(0));
    let in_day = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + second;
    u64::try_from(days * 86_400 + in_day - ahead).ok()
}

fn string_of(value: DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.into_owned()),
        _ => None,
    }
}

fn scalar_of(value: DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        other => string_of(other),
    }
}

/// Reads a file that only the administrator or the daemon's user can have written. `None` if there
/// is no such file.
///
/// # Errors
/// The file cannot be read, is too long or is no text, or another user could have written it.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file: OwnedFd = match open(path, flags, Mode::empty()) {
        Err(nix::errno::Errno::ENOENT) => return Ok(None),
        file => file?,
    };
    read_opened(fs::File::from(file)).map(Some)
}

/// The same for a file that is open.
pub(crate) fn read_opened(mut file: fs::File) -> io::Result<String> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    check_owner(&found)?;
    let mut text = Vec::new();
    file.by_ref().take(MOST_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    String::from_utf8(text).map_err(|_| io::Error::other("it is not text in UTF-8"))
}

/// The folder that the daemon's user configures it in: `/etc/xrayd` for root, else
/// `$XDG_CONFIG_HOME/xrayd` or `~/.config/xrayd`. `None` for a user without a home.
pub(crate) fn default_folder() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some("/etc/xrayd".into());
    }
    let folder = match env::var_os("XDG_CONFIG_HOME").map(PathBuf::from) {
        Some(folder) if folder.is_absolute() => folder,
        _ => PathBuf::from(env::var_os("HOME")?).join(".config"),
    };
    Some(folder.join("xrayd"))
}

/// Checks that a file or a folder belongs to root or to the daemon's user, and that no other user
/// may write to it. The folders above it are not checked: a user who may write to one of them can
/// put another file of root in its place.
pub(crate) fn check_owner(found: &fs::Metadata) -> io::Result<()> {
    let user = nix::unistd::geteuid().as_raw();
    if ![0, user].contains(&found.uid()) {
        let message = format!(
            "it belongs to user {}, not to root or user {user}",
            found.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    // A group of its own has no other member, as a rule. The mode cannot tell.
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o7777;
        let message = format!("others may write to it (mode {mode:04o}): chmod go-w");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mistakes(text: &str, take: impl FnOnce(&mut Table<'_, '_>)) -> Vec<String> {
        let file = TomlText::new(text);
        let mut table = file.table();
        take(&mut table);
        table.finish();
        file.mistakes().iter().map(Mistake::to_string).collect()
    }

    #[test]
    fn values_are_taken_with_their_places() {
        let file =
            TomlText::new("a = \"x\"\nb = 0x10\nc = [\"y\", \"z\"]\n[t]\nd = true\n[[u]]\n[[u]]\n");
        let mut table = file.table();
        let a = table.string("a").unwrap();
        assert_eq!((a.value.as_str(), a.at), ("x", 4));
        assert_eq!(table.integer("b").unwrap().value, 16);
        let c: Vec<String> = table.strings("c").into_iter().map(|it| it.value).collect();
        assert_eq!(c, ["y", "z"]);
        let mut inner = table.table("t").unwrap();
        assert!(inner.boolean("d").unwrap().value);
        inner.finish();
        assert_eq!(table.items("u").len(), 2);
        assert_eq!(table.string("none"), None);
        table.finish();
        assert_eq!(file.mistakes(), []);
    }

    #[test]
    fn moments_have_time_zones() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-11-30T10:30:15+02:00", Some(1_796_027_415)),
            ("\"2027-01-31T00:00:00Z\"", Some(1_801_353_600)),
            ("2027-01-31T00:00:00", None),
            ("2027-01-31", None),
            ("1969-12-31T23:59:59Z", None),
            ("7", None),
        ] {
            let text = format!("x = {text}");
            let file = TomlText::new(&text);
            let moment = file.table().moment("x").map(|moment| moment.value);
            assert_eq!(moment, expected, "{text}");
            assert_eq!(file.mistakes().len(), usize::from(expected.is_none()));
        }
    }

    #[test]
    fn every_mistake_is_found_at_once() {
        let text = "modus = 1\nunit = 7\nother = [1, \"x\"]\nü = 2\n";
        let found = mistakes(text, |table| {
            table.string("mode");
            table.string("unit");
            table.strings("other");
        });
        assert_eq!(
            found,
            [
                "line 1, column 1: unknown key \"modus\"; did you mean mode?",
                "line 2, column 8: unit must be a text in quotation marks",
                "line 3, column 10: other must be a text in quotation marks, or a list of texts",
                "line 4, column 1: invalid unquoted key, expected letters, numbers, `-`, `_`",
                "line 4, column 1: unknown key \"ü\"",
            ]
        );
        let broken = mistakes("a = \nb = \"x\"\n", |table| {
            assert_eq!(table.string("b").unwrap().value, "x");
            table.string("a");
        });
        assert!(broken[0].starts_with("line 1, column 5: "), "{broken:?}");
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        assert_eq!(read(&path).unwrap(), None);
        fs::write(&path, "a = 1\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("a = 1\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("others may write to it (mode 0646)"),
            "{error}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, [0xff]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("UTF-8"));
        fs::write(&path, vec![b' '; 1 << 20 | 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("1 MiB"));
        assert!(
            read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("no regular file")
        );
    }
}

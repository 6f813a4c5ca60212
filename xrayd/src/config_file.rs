//! The configuration file of the daemon. Each of its keys is an option of the command line, without
//! the dashes. The command line wins over the environment, and both over the file.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, parser::ValueSource};

use crate::{
    config::Config,
    toml_file::{self, Mistake, TomlText},
};

/// Longest time of a check of the configuration, which holds up the watchdog's messages.
const CHECK_TIME: Duration = Duration::from_secs(10);
/// Options that a file cannot have.
const NOT_IN_FILES: [&str; 4] = ["config", "print-config", "help", "version"];

/// The begin of a file with all keys.
const EXAMPLE_BEGIN: &str = "\
# The configuration of xrayd. xrayd.toml(5) describes the keys. Each line without a space behind # is
# a key with its default. A value in capital letters stands for one that has no default.
#
# A change takes effect at `systemctl reload xrayd`. The daemon then goes on with all sessions.
";
/// Longest line of a comment in a file with all keys, in bytes.
const COMMENT_WIDTH: usize = 100;

/// The configuration, and where its values come from.
#[derive(Debug)]
pub struct Configured {
    /// The values.
    pub config: Config,
    matches: ArgMatches,
    /// The file, and the options that it sets.
    file: Option<(PathBuf, Vec<String>)>,
    /// The default file of a user, if it cannot be used.
    pub unreadable: Option<(PathBuf, io::Error)>,
}

/// The reason why a configuration file is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was named, and is not there.
    #[error("there is no file {}", .0.display())]
    Missing(PathBuf),
    /// It has mistakes.
    #[error("{} has mistakes", path.display())]
    Mistakes {
        /// The file.
        path: PathBuf,
        /// The mistakes, in the order of their places.
        mistakes: Vec<Mistake>,
    },
    /// The command line is wrong, or asks for help or the version.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
}

/// Reads the configuration from the command line, the environment and the file.
///
/// # Errors
/// One of them is wrong.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Configured, ConfigFileError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let given = Config::command().try_get_matches_from(&arguments)?;
    let named: Option<&PathBuf> = given.get_one("config");
    let Some(path) = named.cloned().or_else(default_path) else {
        return Configured::new(given, None);
    };
    let text = match toml_file::read(&path) {
        // A program that was started as another user may have a home that is not its own, or none.
        Err(error) if named.is_none() && !nix::unistd::geteuid().is_root() => {
            let unreadable = Some((path, error));
            return Ok(Configured {
                unreadable,
                ..Configured::new(given, None)?
            });
        }
        text => text.map_err(|source| ConfigFileError::Read {
            path: path.clone(),
            source,
        })?,
    };
    let Some(text) = text else {
        return match named {
            Some(_) => Err(ConfigFileError::Missing(path)),
            None => Configured::new(given, None),
        };
    };
    let options = options_of(&text).map_err(|mistakes| ConfigFileError::Mistakes {
        path: path.clone(),
        mistakes,
    })?;
    let is_given = |name: &str| {
        let source = given.value_source(&id_of(name));
        matches!(
            source,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
    };
    let (mut words, mut set) = (Vec::new(), Vec::new());
    for (name, its) in options {
        if !is_given(&name) {
            words.extend(its.into_iter().map(OsString::from));
            set.push(name);
        }
    }
    // Behind the program's name.
    let mut all = arguments.into_iter();
    let program = all.next().into_iter();
    let all = program.chain(words).chain(all);
    let matches = Config::command().try_get_matches_from(all)?;
    Configured::new(matches, Some((path, set)))
}

/// Checks that the program would start again with its arguments, its environment and the file as it
/// is now. A daemon that executes its program anew leaves its processes to the next one.
///
/// # Errors
/// What is wrong, in one line. A file that does not answer in time, as on a file system of a
/// network, is wrong too.
pub(crate) async fn check_again() -> Result<(), String> {
    // Reading a file may block.
    let check = tokio::task::spawn_blocking(would_start);
    match tokio::time::timeout(CHECK_TIME, check).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(error)) => Err(format!("cannot check the configuration: {error}")),
        Err(_) => Err(format!(
            "the configuration file does not answer within {CHECK_TIME:?}"
        )),
    }
}

fn would_start() -> Result<(), String> {
    let configured = read(env::args_os()).map_err(|error| match error {
        ConfigFileError::Mistakes { path, mistakes } => {
            let mistakes = mistakes.iter().map(ToString::to_string);
            let mistakes: Vec<String> = mistakes.collect();
            format!("{}: {}", path.display(), mistakes.join("; "))
        }
        other => format!("{:#}", anyhow::Error::from(other)),
    })?;
    configured
        .config
        .check()
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

/// The file that is read if none is named.
fn default_path() -> Option<PathBuf> {
    Some(toml_file::default_folder()?.join("xrayd.toml"))
}

/// The id that clap gives to an option.
fn id_of(name: &str) -> String {
    name.replace('-', "_")
}

/// The options that a file sets, each with its words on the command line.
fn options_of(text: &str) -> Result<Vec<(String, Vec<String>)>, Vec<Mistake>> {
    let file = TomlText::new(text);
    let mut table = file.table();
    let mut options = Vec::new();
    for (name, kind) in known() {
        let values = match kind {
            Kind::One => table.scalar(&name).into_iter().collect(),
            Kind::Several => table.strings(&name),
        };
        let mut words = Vec::new();
        for value in values {
            let word = format!("--{name}={}", value.value);
            // By itself, so that the mistake has its place.
            let alone = Config::command().try_get_matches_from(["xrayd", &word]);
            let alone = alone.and_then(|matches| Config::from_arg_matches(&matches));
            match alone.map(|config| config.check()) {
                Err(error) => file.mistake(value.at, reason_of(&error)),
                Ok(Err(error)) => {
                    file.mistake(value.at, format!("{:#}", anyhow::Error::from(error)));
                }
                Ok(Ok(())) => {}
            }
            words.push(word);
        }
        if !words.is_empty() {
            options.push((name, words));
        }
    }
    table.finish();
    match file.mistakes() {
        mistakes if mistakes.is_empty() => Ok(options),
        mistakes => Err(mistakes),
    }
}

/// A key of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKey {
    /// Its name.
    pub name: String,
    /// What its value looks like: `true`, `[VALUE, ...]` or a name in capital letters.
    pub value: String,
    /// What it does.
    pub help: String,
}

/// The keys that a file can have, for its manual page.
pub fn keys() -> Vec<FileKey> {
    let command = Config::command();
    let keys = known().into_iter().filter_map(|(name, kind)| {
        let mut options = command.get_arguments();
        let option = options.find(|option| option.get_long() == Some(name.as_str()))?;
        let value = option.get_value_names().and_then(|names| names.first());
        let value = value.map_or("VALUE", |name| name.as_str());
        let help = option.get_long_help().or_else(|| option.get_help());
        Some(FileKey {
            value: match kind {
                Kind::One => value.to_owned(),
                Kind::Several => format!("[{value}, ...]"),
            },
            help: help.map(ToString::to_string).unwrap_or_default() + &facts_of(option),
            name,
        })
    });
    keys.collect()
}

/// A file with all keys and their defaults, as comments.
pub fn example() -> String {
    let mut text = String::from(EXAMPLE_BEGIN);
    let command = Config::command();
    for (name, kind) in known() {
        let mut options = command.get_arguments();
        let Some(option) = options.find(|option| option.get_long() == Some(name.as_str())) else {
            continue;
        };
        let help = option
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let place = option.get_value_names().and_then(|names| names.first());
        let place = place.map_or("VALUE", |name| name.as_str());
        let values = option.get_possible_values();
        let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        let help = match values.as_slice() {
            [] => help,
            // `true|false` has several spellings.
            _ if place.contains('|') => format!("{help} [possible values: {place}]"),
            values => format!("{help} [possible values: {}]", values.join(", ")),
        };
        let default = option.get_default_values().first();
        let value = match (kind, default) {
            (Kind::Several, _) => "[]".to_owned(),
            (Kind::One, Some(default)) => quoted(&default.to_string_lossy()),
            // It stands for a value. The help says what holds without one.
            (Kind::One, None) => quoted(place),
        };
        text += &format!("\n{}#{name} = {value}\n", as_comment(&help));
    }
    text
}

/// The lines of a text, each with the sign of a comment in front.
fn as_comment(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::from("#"));
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > COMMENT_WIDTH {
            lines += &format!("{line}\n");
            line = String::from("#");
        }
        line += &format!(" {word}");
    }
    lines + &line + "\n"
}

/// The values that an option may have, and the one that it has by itself, as sentences.
fn facts_of(option: &clap::Arg) -> String {
    let values = option.get_possible_values();
    let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
    let defaults = option.get_default_values().iter();
    let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
    let mut facts = String::new();
    if !values.is_empty() {
        facts += &format!(" [possible values: {}]", values.join(", "));
    }
    if !defaults.is_empty() {
        facts += &format!(" [default: {}]", defaults.join(", "));
    }
    facts
}

/// The values that an option takes.
enum Kind {
    One,
    Several,
}

/// The options that a file can have.
fn known() -> Vec<(String, Kind)> {
    let command = Config::command();
    let options = command.get_arguments().filter_map(|option| {
        let name = option.get_long()?;
        let kind = match option.get_action() {
            clap::ArgAction::Append => Kind::Several,
            _ => Kind::One,
        };
        (!NOT_IN_FILES.contains(&name)).then(|| (name.to_owned(), kind))
    });
    options.collect()
}

/// What is wrong, without the advice for a command line.
fn reason_of(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

// === impl Configured ===

impl Configured {
    fn new(
        matches: ArgMatches,
        file: Option<(PathBuf, Vec<String>)>,
    ) -> Result<Self, ConfigFileError> {
        let config = Config::from_arg_matches(&matches)?;
        Ok(Self {
            config,
            matches,
            file,
            unreadable: None,
        })
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// The configuration as a file has it, with the origin of each value.
    pub fn as_file(&self) -> String {
        let mut text = match self.file() {
            Some(path) => format!("# {} was read.\n", quoted(&path.to_string_lossy())),
            None => "# No file was read.\n".to_owned(),
        };
        let command: Command = Config::command();
        for option in command.get_arguments() {
            let Some(name) = option.get_long() else {
                continue;
            };
            if NOT_IN_FILES.contains(&name) {
                continue;
            }
            let id = option.get_id().as_str();
            let values = self.matches.get_raw(id).into_iter().flatten();
            let values: Vec<String> = values
                .map(|value| quoted(&value.to_string_lossy()))
                .collect();
            let is_set = self.matches.value_source(id);
            let value = match option.get_action() {
                clap::ArgAction::Append => Some(format!("[{}]", values.join(", "))),
                _ => values.into_iter().next(),
            };
            let origin = match is_set {
                Some(ValueSource::EnvVariable) => "environment",
                Some(ValueSource::CommandLine) if self.is_of_file(name) => "file",
                Some(ValueSource::CommandLine) => "command line",
                _ => "default",
            };
            text += &match value {
                Some(value) => format!("{name} = {value} # {origin}\n"),
                None => format!("# {name} is not set\n"),
            };
        }
        text
    }

    fn is_of_file(&self, name: &str) -> bool {
        let mut set = self.file.iter().flat_map(|(_, set)| set);
        set.any(|set| set == name)
    }
}

/// A text as TOML has it, or true or false.
fn quoted(text: &str) -> String {
    if ["true", "false"].contains(&text) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted += &format!("\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::size::ByteSize;

    fn configured(text: &str, arguments: &[&str]) -> Result<Configured, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("xrayd.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let named = [
            "xrayd".into(),
            "--config".into(),
            path.clone().into_os_string(),
        ];
        let arguments = arguments.iter().map(OsString::from);
        read(named.into_iter().chain(arguments)).map_err(|error| match error {
            ConfigFileError::Mistakes { mistakes, .. } => {
                let lines = mistakes.iter().map(ToString::to_string);
                lines.collect::<Vec<_>>().join("\n")
            }
            other => other.to_string(),
        })
    }

    #[test]
    fn a_file_sets_what_the_command_line_does_not() {
        let text = r#"
            retain = "1GiB"
            retain-exited = "2GiB"
            retain-in-files = true
            metrics-functions = ["api::*", "x\"y"]
            metrics-max-functions = 7
            quota = "sessions=10/20"
        "#;
        let configured = configured(text, &["--retain=3GiB", "--socket=/x"]).unwrap();
        let config = &configured.config;
        assert_eq!(config.retain, ByteSize::new(3 << 30));
        assert_eq!(config.retain_exited, ByteSize::new(2 << 30));
        assert!(config.retain_in_files);
        assert_eq!(config.metrics_functions, ["api::*", "x\"y"]);
        assert_eq!(config.metrics_max_functions, 7);
        assert_eq!(config.quota.len(), 1);
        let shown = configured.as_file();
        for line in [
            "retain = \"3GiB\" # command line",
            "retain-exited = \"2GiB\" # file",
            "retain-in-files = true # file",
            "metrics-functions = [\"api::*\", \"x\\\"y\"] # file",
            "audit = \"log\" # default",
            "# metrics is not set",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
        // What is shown is a file again.
        let again = super::tests::configured(&shown, &[]).unwrap();
        assert_eq!(
            again.config,
            Config {
                config: again.config.config.clone(),
                ..config.clone()
            }
        );
    }

    #[test]
    fn the_committed_example_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/xrayd.toml");
        let current = example();
        if env::var_os("XRAYD_BLESS").is_some() {
            fs::write(&path, &current).unwrap();
        }
        let is_current = fs::read_to_string(&path).is_ok_and(|committed| committed == current);
        assert!(
            is_current,
            "packaging/xrayd.toml is not current: XRAYD_BLESS=1 cargo test -p xrayd writes it anew"
        );
    }

    #[test]
    fn the_example_has_the_defaults() {
        let as_it_is = configured(&example(), &[]).unwrap().config;
        let has_no_default = |line: &str| {
            line.ends_with('"') && {
                let value = line.split('"').nth(1).unwrap_or_default();
                value.chars().all(|c| c.is_ascii_uppercase())
            }
        };
        let lines = example();
        let keys = lines.lines().filter_map(|line| line.strip_prefix('#'));
        let keys: Vec<&str> = keys
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .collect();
        assert_eq!(keys.len(), known().len(), "{lines}");
        let defaults = keys.into_iter().filter(|line| !has_no_default(line));
        let text = defaults.collect::<Vec<_>>().join("\n");
        let config = configured(&text, &[]).unwrap().config;
        assert_eq!(
            config,
            Config {
                config: config.config.clone(),
                ..as_it_is
            }
        );
    }

    #[test]
    fn mistakes_have_their_places() {
        let text = "retain = \"lots\"\nretains = 1\nmetrics-max-functions = 0\nquota = [\"x\"]\n";
        let error = configured(text, &[]).unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 4, "{error}");
        for (line, start) in lines.iter().zip([
            "line 1, column 10: invalid value 'lots' for '--retain <SIZE>'",
            "line 2, column 1: unknown key \"retains\"; did you mean retain?",
            "line 3, column 25: ",
            "line 4, column 10: ",
        ]) {
            assert!(line.starts_with(start), "{line}");
        }
        let missing = read(["xrayd", "--config=/no/such/file"].map(OsString::from));
        let missing = missing.unwrap_err().to_string();
        assert_eq!(missing, "there is no file /no/such/file");
    }
}

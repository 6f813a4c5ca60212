//! The rules of access in force.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use super::rules::Rules;
use crate::{
    lock::lock,
    toml_file::{self, Mistake},
};

/// The rules in force, and their file. Clones share them.
#[derive(Debug, Clone)]
pub struct AccessRules(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    keeper: Option<Arc<dyn AccessKeeper>>,
    state: Mutex<State>,
    /// Held while the file is read, so that the latest read wins.
    loading: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    rules: Arc<Rules>,
    text: String,
    mistakes: Vec<Mistake>,
}

/// What outlives the daemon: the latest text without mistakes.
pub(crate) trait AccessKeeper: fmt::Debug + Send + Sync {
    /// The text that was kept, if there is one.
    fn kept(&self) -> Option<String>;

    /// Keeps a text in the place of the one before. `None`: there are no rules.
    fn keep(&self, text: Option<&str>);
}

/// The state of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessStatus {
    /// Their file. `None`: there are no rules.
    pub path: Option<PathBuf>,
    /// The text in force. Empty if there are no rules.
    pub text: String,
    /// The mistakes of the file as it was read last. If there are any, the text is an earlier one.
    pub mistakes: Vec<Mistake>,
}

/// The file of rules if none is named: `access.toml` in the folder of the daemon's configuration.
pub(crate) fn default_path() -> Option<PathBuf> {
    Some(toml_file::default_folder()?.join("access.toml"))
}

// === impl AccessRules ===

impl AccessRules {
    /// No rules.
    pub fn none() -> Self {
        Self::new(None, None)
    }

    /// The rules of a file. If it has mistakes, those that an earlier daemon has kept are in force.
    pub(crate) fn new(path: Option<PathBuf>, keeper: Option<Arc<dyn AccessKeeper>>) -> Self {
        let kept = keeper.as_ref().and_then(|keeper| keeper.kept());
        if let (None, Some(keeper)) = (&path, &keeper) {
            keeper.keep(None);
        }
        let kept = kept.filter(|_| path.is_some()).and_then(|text| {
            // They were right once. The users in it may be gone.
            let rules = Rules::parse(&text).inspect_err(|mistakes| {
                let first = mistakes.first().map(ToString::to_string);
                tracing::error!(mistake = first, "cannot use the rules of access of before");
            });
            Some(State {
                rules: Arc::new(rules.ok()?),
                text,
                mistakes: Vec::new(),
            })
        });
        let this = Self(Arc::new(Inner {
            path,
            keeper,
            state: Mutex::new(kept.unwrap_or_default()),
            loading: Mutex::default(),
        }));
        this.load();
        this
    }

    /// Reads the file again. A file with mistakes changes no rule.
    pub fn load(&self) -> AccessStatus {
        let Some(path) = &self.0.path else {
            return self.status();
        };
        let _loading = lock(&self.0.loading);
        let read = toml_file::read(path)
            .map_err(|error| vec![Mistake::of_file(format!("cannot be read: {error}"))])
            .and_then(|text| {
                let text = text.unwrap_or_default();
                Ok((Rules::parse(&text)?, text))
            });
        let mut state = lock(&self.0.state);
        match read {
            Ok((rules, text)) => {
                if let Some(keeper) = &self.0.keeper {
                    keeper.keep(Some(text.as_str()).filter(|_| !rules.is_empty()));
                }
                *state = State {
                    rules: Arc::new(rules),
                    text,
                    mistakes: Vec::new(),
                };
            }
            Err(mistakes) => {
                let effect = match state.rules.is_empty() {
                    true => "no rules of access are in force",
                    false => "the rules of access stay as they were",
                };
                for mistake in &mistakes {
                    tracing::error!(file = %path.display(), %mistake, effect, "a mistake");
                }
                state.mistakes = mistakes;
            }
        }
        drop(state);
        self.status()
    }

    /// The rules in force.
    pub(crate) fn current(&self) -> Arc<Rules> {
        Arc::clone(&lock(&self.0.state).rules)
    }

    /// The state of the rules.
    pub fn status(&self) -> AccessStatus {
        let state = lock(&self.0.state);
        AccessStatus {
            path: self.0.path.clone(),
            text: state.text.clone(),
            mistakes: state.mistakes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[derive(Debug, Default)]
    struct Kept(Mutex<Option<String>>);

    impl AccessKeeper for Kept {
        fn kept(&self) -> Option<String> {
            lock(&self.0).clone()
        }

        fn keep(&self, text: Option<&str>) {
            *lock(&self.0) = text.map(str::to_owned);
        }
    }

    /// A broken file changes nothing, for this daemon and the next one. A file that is gone ends
    /// the rules.
    #[test]
    fn a_broken_file_keeps_the_old_rules_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        };
        let right = "[[allow]]\nto = { user = \"7\" }\nverbs = \"admin\"\n";
        write(right);
        let keeper = Arc::new(Kept::default());
        let rules = || {
            let keeper = Arc::<Kept>::clone(&keeper);
            AccessRules::new(Some(path.clone()), Some(keeper))
        };
        let first = rules();
        assert_eq!(first.status().text, right);
        write("[[allow]]\nverbs = 7\n");
        let broken = first.load();
        assert_eq!(
            (broken.text.as_str(), broken.mistakes.is_empty()),
            (right, false)
        );
        assert!(!first.current().is_empty());
        // The next daemon.
        let next = rules();
        assert!(!next.current().is_empty() && !next.status().mistakes.is_empty());
        // Another user could have written it.
        write("");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!next.load().mistakes.is_empty() && !next.current().is_empty());
        fs::remove_file(&path).unwrap();
        assert!(next.load().mistakes.is_empty() && next.current().is_empty());
        assert!(rules().current().is_empty());
    }
}

//! The threads that are recorded, by id or by name.

use xray_trace::instr_map::{Candidate, CompiledSelection, Rule, Selection, SelectionError};

/// The threads that are recorded.
#[derive(Debug, Clone)]
pub(crate) struct ThreadChoice {
    ids: Vec<u32>,
    /// `None` if no thread is chosen by name.
    names: Option<CompiledSelection>,
}

// === impl ThreadChoice ===

impl ThreadChoice {
    /// Threads with these ids, and threads whose names match these globs.
    ///
    /// # Errors
    /// A pattern that cannot be understood.
    pub(crate) fn new(threads: &[String]) -> Result<Self, SelectionError> {
        let (mut ids, mut include) = (Vec::new(), Vec::new());
        for thread in threads {
            match thread.parse() {
                Ok(id) => ids.push(id),
                Err(_) => include.push(Rule::Glob(thread.clone())),
            }
        }
        let names = Selection {
            include,
            exclude: Vec::new(),
        };
        let names = match names.include.is_empty() {
            true => None,
            false => Some(CompiledSelection::new(&names)?),
        };
        Ok(Self { ids, names })
    }

    /// Its memory in bytes.
    pub(crate) fn size(&self) -> usize {
        let names = self.names.as_ref().map_or(0, CompiledSelection::size);
        names + size_of_val(&*self.ids)
    }

    /// True if a thread with this id and this name is recorded.
    pub(crate) fn has(&self, tid: u32, name: &str) -> bool {
        let named = Candidate {
            name,
            ..Candidate::default()
        };
        self.ids.contains(&tid)
            || self
                .names
                .as_ref()
                .is_some_and(|names| names.matches(&named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_meant_by_id_and_by_name() {
        let choice = ThreadChoice::new(&["17".to_owned(), "io-*".to_owned()]).unwrap();
        assert!(choice.has(17, "main"));
        assert!(choice.has(18, "io-3"));
        assert!(!choice.has(18, "main"));
        assert!(ThreadChoice::new(&["a[".to_owned()]).is_err());
    }
}

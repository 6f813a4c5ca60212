//! Depth-first search over choices. The first run takes the first option everywhere. Each further
//! run differs in the last choice that has an option left.

use std::cell::{Cell, RefCell};

/// The choices of one run.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// The chosen option and the number of options; kept from run to run.
    path: RefCell<Vec<(u8, u8)>>,
    /// The number of choices that this run has made.
    made: Cell<usize>,
}

// === impl Choices ===

impl Choices {
    /// Chooses one of `options` options (at least 1).
    pub(crate) fn choose(&self, options: u8) -> u8 {
        let at = self.made.replace(self.made.get() + 1);
        let mut path = self.path.borrow_mut();
        if at == path.len() {
            path.push((0, options));
        }
        assert_eq!(
            path[at].1, options,
            "a run repeats the choices of the one before"
        );
        path[at].0
    }

    /// Goes to the next run. False when every run was made.
    pub(crate) fn next(&self) -> bool {
        self.made.set(0);
        let mut path = self.path.borrow_mut();
        while let Some((chosen, options)) = path.pop() {
            if chosen + 1 < options {
                path.push((chosen + 1, options));
                return true;
            }
        }
        false
    }
}

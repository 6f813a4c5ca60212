//! A profile in memory: call paths as a trie, and the number of calls of each path for each thread.
//!
//! It works like LLVM's `Profile`: paths have numbers from 1, and two profiles are merged thread by
//! thread, or with all threads in one. Its size grows with the number of paths, not with the number
//! of calls.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use super::Reader;
use crate::llvm::Error;

/// The number of a path, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(u32);

/// The calls and the time of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// The number of calls.
    pub calls: u64,
    /// The self time of its last called function, in ticks.
    pub ticks: u64,
}

/// Paths, with the calls and the time of each.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Each path as its caller's path and its last called function; the path `n` is `nodes[n - 1]`.
    nodes: Vec<Node>,
    by_call: HashMap<Node, PathId>,
    threads: BTreeMap<u64, BTreeMap<PathId, Measured>>,
}

/// The last call of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    caller: Option<PathId>,
    function: i32,
}

// === impl Profile ===

impl Profile {
    /// Reads a whole profile.
    ///
    /// # Errors
    ///
    /// The errors of [`Reader::next`].
    pub fn read<R: Read>(reader: &mut Reader<R>) -> Result<Self, Error> {
        let mut profile = Self::default();
        while let Some(path) = reader.next()? {
            let measured = Measured {
                calls: path.calls,
                ticks: path.ticks,
            };
            profile.add(path.block.thread, path.functions, measured);
        }
        Ok(profile)
    }

    /// The number of a path of functions, from the last called to the first. `None` for an empty
    /// path, and after 2^32 paths.
    pub fn intern(&mut self, functions: &[i32]) -> Option<PathId> {
        let mut caller = None;
        for function in functions.iter().rev() {
            let node = Node {
                caller,
                function: *function,
            };
            caller = Some(match self.by_call.get(&node) {
                Some(id) => *id,
                None => {
                    let id = PathId(u32::try_from(self.nodes.len() + 1).ok()?);
                    self.nodes.push(node);
                    self.by_call.insert(node, id);
                    id
                }
            });
        }
        caller
    }

    /// The functions of a path, from the last called to the first; empty if the path does not
    /// exist.
    #[must_use]
    pub fn expand(&self, path: PathId) -> Vec<i32> {
        let mut functions = Vec::new();
        let mut next = Some(path);
        while let Some(PathId(number)) = next {
            let index = usize::try_from(number).unwrap_or(0).checked_sub(1);
            let Some(node) = index.and_then(|index| self.nodes.get(index)) else {
                break;
            };
            functions.push(node.function);
            next = node.caller;
        }
        functions
    }

    /// Adds calls and time of a path in a thread. The path is from the last called function to the
    /// first.
    pub fn add(&mut self, thread: u64, functions: &[i32], measured: Measured) {
        let Some(path) = self.intern(functions) else {
            return;
        };
        let known = self.threads.entry(thread).or_default();
        let known = known.entry(path).or_default();
        known.calls = known.calls.saturating_add(measured.calls);
        known.ticks = known.ticks.saturating_add(measured.ticks);
    }

    /// The threads, in order, each with its paths.
    pub fn threads(&self) -> impl Iterator<Item = (u64, &BTreeMap<PathId, Measured>)> {
        self.threads.iter().map(|(thread, paths)| (*thread, paths))
    }

    /// Merges both profiles, thread by thread.
    #[must_use]
    pub fn merged_by_thread(mut self, other: &Self) -> Self {
        self.add_all(other, |thread| thread);
        self
    }

    /// Merges both profiles, with all threads as thread 0.
    #[must_use]
    pub fn merged_by_stack(&self, other: &Self) -> Self {
        let mut merged = Self::default();
        merged.add_all(self, |_| 0);
        merged.add_all(other, |_| 0);
        merged
    }

    fn add_all(&mut self, other: &Self, thread_of: impl Fn(u64) -> u64) {
        for (thread, paths) in &other.threads {
            for (path, measured) in paths {
                self.add(thread_of(*thread), &other.expand(*path), *measured);
            }
        }
    }
}

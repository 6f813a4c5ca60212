//! Sums of one thread's calls by stack, updated with each event: XRay's function call trie, with
//! distributions of durations.
//!
//! Inconsistent events are never guessed at. An exit ends the innermost open call of its function;
//! calls further in were left. An exit of a function that is not open is counted and otherwise
//! ignored, as upstream's tests of the trie require. After a loss no call is open. A call without
//! an exit counts up to the event before.
//!
//! Two limits bound the memory: the room for all profilers of a process, and the depth of a stack.
//! Stacks for which there is no room are counted as one, `[more stacks]`, within their known part.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::container::{ProfileEncoder, ProfilePart};
use crate::model::{CallSums, FunctionId, Missing, ThreadId};

/// The function of the stack that counts all stacks beyond the limit.
pub const MORE_STACKS: FunctionId = FunctionId(u32::MAX - 1);

/// The greatest depth of a call that is followed.
const MOST_DEPTH: usize = 64 << 10;

/// The memory that several profilers may take together.
#[derive(Debug, Clone)]
pub struct ProfileBudget {
    used: Arc<AtomicUsize>,
    most: usize,
}

/// The profiler of one thread.
#[derive(Debug)]
pub struct Profiler {
    sums: StackSums,
    /// The open calls, outermost first.
    open: Vec<Open>,
    /// The number of open calls further in.
    deeper: u64,
    /// The node + 1 of the last callee of the innermost open call; 0 before its first callee.
    called: u32,
    /// The time of the latest event.
    last: u64,
}

/// Distinct stacks, as a prefix tree, with the sums of the calls of each.
#[derive(Debug)]
pub struct StackSums {
    nodes: Vec<Node>,
    /// Nodes by parent + 1 (0 for none) and function.
    children: foldhash::HashMap<(u32, FunctionId), u32>,
    missing: Missing,
    room: ProfileBudget,
    /// The bytes taken from `room`.
    used: usize,
}

/// A stack of [`StackSums`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackId(u32);

#[derive(Debug, Clone)]
struct Node {
    /// The caller's node + 1; 0 for outermost calls.
    parent: u32,
    function: FunctionId,
    /// The nodes + 1 that came next when this node was last met: its first callee, and its caller's
    /// next callee. Programs repeat themselves, so the same node usually comes again, and no
    /// look-up is needed.
    first: u32,
    next: u32,
    sums: CallSums,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    /// The node + 1.
    node: u32,
    function: FunctionId,
    start: u64,
    /// The time in its callees that have ended.
    inner: u64,
    /// Self time that was counted already.
    reported: u64,
}

// === impl ProfileBudget ===

impl ProfileBudget {
    /// Room without an end, for sums whose number something else bounds.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Room for approximately this number of bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            used: Arc::default(),
            most: bytes,
        }
    }

    /// The number of bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn is_full(&self) -> bool {
        self.used() >= self.most
    }
}

// === impl Profiler ===

impl Profiler {
    /// A profiler without open calls.
    #[must_use]
    pub fn new(room: ProfileBudget) -> Self {
        Self {
            sums: StackSums::new(room),
            open: Vec::new(),
            deeper: 0,
            called: 0,
            last: 0,
        }
    }

    /// Opens a call. Time must not run backwards.
    #[inline]
    pub fn enter(&mut self, function: FunctionId, ticks: u64) {
        self.last = ticks;
        if self.open.len() >= MOST_DEPTH || self.deeper > 0 {
            self.deeper += 1;
            self.sums.missing.too_deep += 1;
            return;
        }
        let caller = self.open.last().map_or(0, |open| open.node);
        let called = std::mem::take(&mut self.called);
        let node = self.sums.called(caller, called, function);
        self.open.push(Open {
            node,
            function,
            start: ticks,
            inner: 0,
            reported: 0,
        });
    }

    /// Closes the innermost call of this function.
    #[inline]
    pub fn exit(&mut self, function: FunctionId, ticks: u64) {
        if self.deeper > 0 {
            self.last = ticks;
            self.deeper -= 1;
            return;
        }
        if self.open.last().map(|open| open.function) != Some(function) {
            let found = self.open.iter().rposition(|open| open.function == function);
            let Some(found) = found else {
                self.last = ticks;
                return self.unmatched_exit();
            };
            self.leave((self.open.len() - found - 1) as u64);
        }
        self.last = ticks;
        let Some(open) = self.open.pop() else { return };
        let duration = ticks.saturating_sub(open.start);
        let own = duration.saturating_sub(open.inner);
        self.sums
            .finish(open.node, duration, own.saturating_sub(open.reported));
        self.called = open.node;
        if let Some(caller) = self.open.last_mut() {
            caller.inner = caller.inner.saturating_add(duration);
        }
    }

    /// Records that the open calls were still open at this time, because of another event.
    #[inline]
    pub fn pass(&mut self, ticks: u64) {
        self.last = ticks;
    }

    /// Counts an exit of a call that is not open.
    pub fn unmatched_exit(&mut self) {
        self.sums.missing.exits_without_entry += 1;
    }

    /// Closes the innermost calls, which were left without an exit at some time since the event
    /// before. The trace reports that at `ticks`.
    pub fn unwind(&mut self, calls: u64, ticks: u64) {
        self.leave(calls);
        self.last = ticks;
    }

    fn leave(&mut self, calls: u64) {
        let deeper = calls.min(self.deeper);
        self.deeper -= deeper;
        for _ in deeper..calls {
            let Some(open) = self.open.pop() else { return };
            let duration = self.last.saturating_sub(open.start);
            let own = duration.saturating_sub(open.inner);
            self.sums
                .unfinished(open.node, own.saturating_sub(open.reported));
            self.called = open.node;
            if let Some(caller) = self.open.last_mut() {
                caller.inner = caller.inner.saturating_add(duration);
            }
        }
    }

    /// Counts missing events. The open calls are closed, because they are unknown from here on.
    pub fn lose(&mut self, events: u64) {
        let missing = &mut self.sums.missing;
        missing.lost = missing.lost.saturating_add(events);
        self.end();
    }

    /// Closes the open calls after the last event.
    pub fn end(&mut self) {
        self.leave(u64::MAX);
        self.deeper = 0;
        self.called = 0;
    }

    /// Returns the sums so far. Open calls count when they end, but their self time up to the
    /// latest event counts now.
    #[must_use]
    pub fn take(&mut self) -> StackSums {
        let mut inner = 0;
        for open in self.open.iter_mut().rev() {
            let duration = self.last.saturating_sub(open.start);
            let own = duration.saturating_sub(open.inner).saturating_sub(inner);
            let news = own.saturating_sub(open.reported);
            open.reported = own.max(open.reported);
            inner = duration;
            if let Some(node) = self.sums.node_mut(open.node) {
                node.sums.self_ticks = node.sums.self_ticks.saturating_add(news);
            }
        }
        let next = StackSums::new(self.sums.room.clone());
        let sums = std::mem::replace(&mut self.sums, next);
        self.called = 0;
        let mut caller = 0;
        for open in &mut self.open {
            caller = self.sums.child(caller, open.function);
            open.node = caller;
        }
        sums
    }
}

// === impl StackSums ===

impl StackSums {
    /// Empty sums.
    #[must_use]
    pub fn new(room: ProfileBudget) -> Self {
        Self {
            nodes: Vec::new(),
            children: foldhash::HashMap::default(),
            missing: Missing::default(),
            room,
            used: 0,
        }
    }

    /// Empty sums with this number of lost events.
    #[must_use]
    pub fn of_losses(room: ProfileBudget, events: u64) -> Self {
        let mut sums = Self::new(room);
        sums.missing.lost = events;
        sums
    }

    /// The stack of a function that a caller has called. `None` stands for no caller.
    pub fn stack(&mut self, caller: Option<StackId>, function: FunctionId) -> StackId {
        StackId(self.child(caller.map_or(0, |caller| caller.0), function))
    }

    /// Adds calls to a stack of these sums.
    pub fn add_calls(&mut self, stack: StackId, calls: &CallSums) {
        self.change(stack.0, |sums| sums.add(calls));
    }

    /// Adds missing data.
    pub fn add_missing(&mut self, missing: Missing) {
        self.missing.add(missing);
    }

    /// Adds other sums of the same process.
    pub fn add(&mut self, other: &Self) {
        self.missing.add(other.missing);
        let mut places = Vec::with_capacity(other.nodes.len());
        for node in &other.nodes {
            let parent = node.parent.checked_sub(1);
            let parent = parent.map_or(0, |parent| places[parent as usize]);
            let place = self.child(parent, node.function);
            places.push(place);
            self.change(place, |sums| sums.add(&node.sums));
        }
    }

    /// The calls that came after `earlier`, which are earlier sums of the same calls. Stacks
    /// without such calls are left out, unless one within them has some.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut differences = Vec::with_capacity(self.nodes.len());
        // The nodes of `earlier` for the nodes here, each + 1, and 0 for none.
        let mut theirs: Vec<u32> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let caller = match node.parent.checked_sub(1) {
                None => Some(0),
                Some(parent) => Some(theirs[parent as usize]).filter(|caller| *caller > 0),
            };
            let same = caller.and_then(|caller| earlier.children.get(&(caller, node.function)));
            let same = same.copied().unwrap_or(0);
            theirs.push(same);
            differences.push(match earlier.node(same) {
                Some(before) => node.sums.since(&before.sums),
                None => node.sums.clone(),
            });
        }
        // A caller comes before its callees, so they are looked at first.
        let mut is_kept = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().rev() {
            is_kept[at] |= differences[at].calls > 0 || differences[at].self_ticks > 0;
            if is_kept[at]
                && let Some(parent) = node.parent.checked_sub(1)
            {
                is_kept[parent as usize] = true;
            }
        }
        // As many stacks as there are.
        let mut since = Self::new(ProfileBudget::unlimited());
        since.missing = self.missing.since(earlier.missing);
        let mut places = vec![0; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            if is_kept[at] {
                let parent = node.parent.checked_sub(1);
                let parent = parent.map_or(0, |parent| places[parent as usize]);
                places[at] = since.child(parent, node.function);
                since.change(places[at], |sums| sums.add(&differences[at]));
            }
        }
        since
    }

    /// Whether these can be later sums of the same calls: no stack has fewer calls.
    #[must_use]
    pub fn covers(&self, earlier: &Self) -> bool {
        let mut own: Vec<Option<u32>> = Vec::with_capacity(earlier.nodes.len());
        for node in &earlier.nodes {
            let caller = match node.parent.checked_sub(1) {
                None => Some(0),
                Some(parent) => own[parent as usize],
            };
            let same = caller.and_then(|caller| self.children.get(&(caller, node.function)));
            own.push(same.copied());
            let calls = same.and_then(|same| self.node(*same));
            if calls.map_or(0, |same| same.sums.calls) < node.sums.calls {
                return false;
            }
        }
        true
    }

    /// The same sums with other numbers of functions.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(FunctionId) -> FunctionId) -> Self {
        let mut renumbered = Self::new(ProfileBudget::unlimited());
        renumbered.missing = self.missing;
        let mut places = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let parent = node.parent.checked_sub(1);
            let parent = parent.map_or(0, |parent| places[parent as usize]);
            let place = renumbered.child(parent, number(node.function));
            places.push(place);
            renumbered.change(place, |sums| sums.add(&node.sums));
        }
        renumbered
    }

    /// Whether there are neither calls nor losses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.missing == Missing::default()
    }

    /// Its functions, each once for every stack that it is the innermost one of.
    pub fn functions(&self) -> impl Iterator<Item = FunctionId> {
        self.nodes.iter().map(|node| node.function)
    }

    /// The sums of its functions' calls, once for every stack that the function is the innermost
    /// one of.
    pub fn calls(&self) -> impl Iterator<Item = (FunctionId, &CallSums)> {
        self.nodes.iter().map(|node| (node.function, &node.sums))
    }

    /// The counts of missing data.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The sums as parts of a trace. `thread` is the id of the thread there, and `number` returns
    /// the ids of functions.
    #[must_use]
    pub fn parts(
        &self,
        thread: ThreadId,
        number: impl Fn(FunctionId) -> FunctionId,
    ) -> Vec<ProfilePart> {
        let mut encoder = ProfileEncoder::new(thread, self.missing);
        for node in &self.nodes {
            let caller = node.parent.checked_sub(1);
            encoder.push(caller, number(node.function), &node.sums);
        }
        encoder.finish()
    }

    /// The node of this function within `parent`. The node that came last time, after `sibling` if
    /// there is one, is tried first.
    #[inline]
    fn called(&mut self, parent: u32, sibling: u32, function: FunctionId) -> u32 {
        let before = if sibling == 0 { parent } else { sibling };
        let expected = self.node(before).map_or(0, |before| match sibling {
            0 => before.first,
            _ => before.next,
        });
        if let Some(node) = self.node(expected)
            && node.function == function
            && node.parent == parent
        {
            return expected;
        }
        let child = self.child(parent, function);
        if let Some(before) = self.node_mut(before) {
            match sibling {
                0 => before.first = child,
                _ => before.next = child,
            }
        }
        child
    }

    #[inline]
    fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node.checked_sub(1)? as usize)
    }

    #[inline]
    fn node_mut(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes.get_mut(node.checked_sub(1)? as usize)
    }

    /// The node of this function within `parent`. Both are a node + 1; `parent` can be 0.
    fn child(&mut self, parent: u32, function: FunctionId) -> u32 {
        let in_more = |node: &Node| node.function == MORE_STACKS;
        if self.node(parent).is_some_and(in_more) {
            return parent;
        }
        if let Some(child) = self.children.get(&(parent, function)) {
            return *child;
        }
        if self.room.is_full() && function != MORE_STACKS {
            return self.child(parent, MORE_STACKS);
        }
        self.nodes.push(Node {
            parent,
            function,
            first: 0,
            next: 0,
            sums: CallSums::default(),
        });
        let child = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.children.insert((parent, function), child);
        self.charge(NODE_BYTES);
        child
    }

    #[inline]
    fn finish(&mut self, node: u32, duration: u64, own: u64) {
        self.change(node, |sums| {
            sums.finish(duration);
            sums.self_ticks = sums.self_ticks.saturating_add(own);
        });
    }

    fn unfinished(&mut self, node: u32, own: u64) {
        self.change(node, |sums| {
            sums.calls += 1;
            sums.unfinished += 1;
            sums.self_ticks = sums.self_ticks.saturating_add(own);
        });
    }

    /// Changes the sums of a node, and counts the memory that this takes.
    #[inline]
    fn change(&mut self, node: u32, change: impl FnOnce(&mut CallSums)) {
        let Some(node) = self.node_mut(node) else {
            return;
        };
        let before = node.sums.durations.heap_bytes();
        change(&mut node.sums);
        let after = node.sums.durations.heap_bytes();
        if after != before {
            self.charge(after.saturating_sub(before));
        }
    }

    #[cold]
    fn charge(&mut self, bytes: usize) {
        self.used += bytes;
        self.room.used.fetch_add(bytes, Relaxed);
    }
}

/// Bytes of a node, with its entry in `children`.
const NODE_BYTES: usize = size_of::<Node>() + 32;

impl Clone for StackSums {
    /// An exact copy, also without room: none of its stacks is added to another one.
    fn clone(&self) -> Self {
        let mut sums = Self::new(self.room.clone());
        sums.nodes.clone_from(&self.nodes);
        sums.children.clone_from(&self.children);
        sums.missing = self.missing;
        sums.charge(self.used);
        sums
    }
}

impl Drop for StackSums {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.used, Relaxed);
    }
}

#[cfg(test)]
mod tests;

//! `std::sort` of the GNU C++ library. The sort is not stable, and `llvm-xray` prints functions
//! with equal keys in the resulting order. The comparison of blocks of FDR logs is no order at all,
//! so only the same steps give the same result.
//!
//! The steps are those of `bits/stl_algo.h`: quicksort by the median of three, heap sort where the
//! recursion is too deep, and insertion sort at the end.

/// Ranges of at most this length are left to insertion sort.
const SHORT: usize = 16;

/// Sorts the items by "comes before".
pub(super) fn sort<T>(items: &mut [T], less: impl Fn(&T, &T) -> bool) {
    if items.len() > 1 {
        let deepest = 2 * items.len().ilog2();
        quicksort(items, deepest, &less);
        insertion_sort(items, &less);
    }
}

fn quicksort<T>(mut items: &mut [T], mut deepest: u32, less: &impl Fn(&T, &T) -> bool) {
    while items.len() > SHORT {
        if deepest == 0 {
            heap_sort(items, less);
            return;
        }
        deepest -= 1;
        let cut = partition(items, less);
        let (front, back) = items.split_at_mut(cut);
        quicksort(back, deepest, less);
        items = front;
    }
}

/// Moves the median of three to the front, and what comes before it to the left of the result.
fn partition<T>(items: &mut [T], less: &impl Fn(&T, &T) -> bool) -> usize {
    let [a, b, c] = [1, items.len() / 2, items.len() - 1];
    let before = |items: &[T], a: usize, b: usize| less(&items[a], &items[b]);
    let median = if before(items, a, b) {
        if before(items, b, c) {
            b
        } else if before(items, a, c) {
            c
        } else {
            a
        }
    } else if before(items, a, c) {
        a
    } else if before(items, b, c) {
        c
    } else {
        b
    };
    items.swap(0, median);
    let (mut first, mut last) = (1, items.len());
    loop {
        // With a comparison that is no order, the C++ library could leave the range here.
        while first < items.len() && before(items, first, 0) {
            first += 1;
        }
        last -= 1;
        while last > 0 && before(items, 0, last) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        items.swap(first, last);
        first += 1;
    }
}

fn insertion_sort<T>(items: &mut [T], less: &impl Fn(&T, &T) -> bool) {
    for at in 1..items.len() {
        // Up to SHORT, an item that comes before the first one goes there at once.
        if at < SHORT && less(&items[at], &items[0]) {
            items[..=at].rotate_right(1);
            continue;
        }
        let mut to = at;
        while to > 0 && less(&items[at], &items[to - 1]) {
            to -= 1;
        }
        items[to..=at].rotate_right(1);
    }
}

fn heap_sort<T>(items: &mut [T], less: &impl Fn(&T, &T) -> bool) {
    let len = items.len();
    for parent in (0..len / 2).rev() {
        adjust(items, parent, less);
    }
    for end in (1..len).rev() {
        items.swap(0, end);
        adjust(&mut items[..end], 0, less);
    }
}

/// Moves the item at this index down to a leaf, and from there up to its place in the heap.
fn adjust<T>(items: &mut [T], top: usize, less: &impl Fn(&T, &T) -> bool) {
    let len = items.len();
    let mut hole = top;
    while 2 * hole + 2 < len {
        let (left, right) = (2 * hole + 1, 2 * hole + 2);
        let child = if less(&items[right], &items[left]) {
            left
        } else {
            right
        };
        items.swap(hole, child);
        hole = child;
    }
    if 2 * hole + 2 == len {
        items.swap(hole, 2 * hole + 1);
        hole = 2 * hole + 1;
    }
    while hole > top {
        let parent = (hole - 1) / 2;
        if !less(&items[parent], &items[hole]) {
            break;
        }
        items.swap(parent, hole);
        hole = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_patterns_are_sorted() {
        for len in 0..200_u32 {
            for step in [0, 1, 7, 97, 199] {
                let mut items = (0..len).map(|at| at * step % 101).collect::<Vec<_>>();
                let mut expected = items.clone();
                expected.sort_unstable();
                sort(&mut items, |a, b| a < b);
                assert_eq!(items, expected, "{len} items, step {step}");
            }
        }
    }

    #[test]
    fn a_comparison_that_is_no_order_loses_nothing() {
        let mut items = (0..1000_u32).map(|at| at * 7919 % 1000).collect::<Vec<_>>();
        sort(&mut items, |a, b| a / 10 < b / 10 && a % 10 < b % 10);
        let mut all = items.clone();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        sort(&mut items, |_, _| true);
        items.sort_unstable();
        assert_eq!(items, all);
    }
}

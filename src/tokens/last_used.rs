//! Lists of the models that were used last, in bounded memory.

/// The entry that is meant, which moves to the end of the list. A new entry takes the place of the first one if the list has `most`
/// entries.
pub(crate) fn last_used<T>(
    all: &mut Vec<T>,
    most: usize,
    is_meant: impl FnMut(&T) -> bool,
    new: impl FnOnce() -> T,
) -> &mut T {
    let known = all.iter().position(is_meant).map(|at| all.remove(at));
    if known.is_none() && all.len() >= most {
        all.remove(0);
    }
    all.push_mut(known.unwrap_or_else(new))
}

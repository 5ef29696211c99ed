//! Matches names with patterns in which a star matches any number of characters.

/// Whether the whole of `name` is what a pattern says: `is_star` tells of a part of it whether it matches any number of
/// characters, and `is` whether it matches one.
pub(crate) fn matches<P>(
    mut pattern: impl Iterator<Item = P> + Clone,
    name: &str,
    is_star: impl Fn(&P) -> bool,
    is: impl Fn(&P, char) -> bool,
) -> bool {
    let mut name = name.chars();
    // The pattern after the last star, and where in the name what the star matches would end next.
    let mut star = None;
    loop {
        match (pattern.next(), name.clone().next()) {
            (Some(part), _) if is_star(&part) => star = Some((pattern.clone(), name.clone())),
            (Some(part), Some(found)) if is(&part, found) => drop(name.next()),
            (None, None) => return true,
            _ => {
                // The star takes one character more; the last star is the only one that ever needs to.
                let Some((behind, rest)) = &mut star else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (pattern, name) = (behind.clone(), rest.clone());
            }
        }
    }
}

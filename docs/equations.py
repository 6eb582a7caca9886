"""The equations of the docstrings in LaTeX: `EQUATIONS` maps a docstring's paragraph to them.

A docstring has its equation in plain text, which a reader of the source understands. A paragraph
that is not listed here is shown as it is in the source; tests/test_docs.py finds methods and losses
without an entry. `\\\\` begins a new line.
"""

_KL = r'\operatorname{KL}'
_DISTILLED = r'\text{CE} + \beta\tau^2\,' + _KL
_SOFTMAX = r'\operatorname{softmax}'
_SOFT_CE = r'-\sum_c p^g_c \log\,p_c'
_MOVED = r'\lVert w - w_g \rVert^2'
_BOTH = rf'p^g = {_SOFTMAX}(z^g / \tau) \quad p = {_SOFTMAX}(z / \tau)'
_MASKED_STUDENT = r"p' \text{ a softmax over all classes but } y"
_MINORITY = r'\text{over the classes with } n_c \le n / C \text{, without } y'
_MINORITY_LOSS = r'\text{over the classes that are neither in the majority nor } y'
_SMOOTHED = r'-\sum_c \left((1 - s)\,1[c = y] + \frac{s}{C}\right) \log\,p_c'
_CONTRAST = r'-\log \frac{e^{\cos(f, f_g)/\tau}}{e^{\cos(f, f_g)/\tau} + e^{\cos(f, f_p)/\tau}}'
_PAIRS = r'\frac{1}{F (F - 1)} \sum_{i \ne j} K_{ij}^2'
_CREDIBLE = r'M_k = M_{\max} \max(0,\; M^{\text{class}}_k M^{\text{sample}} - 0.1)'
_PHI = r'\varphi = p^g_y - \sum_{k \ne y} p^g_k = 2 p^g_y - 1'
_ADAPTIVE_STEP = r'm \leftarrow b_1 m + (1 - b_1) g'
_MOMENTS = r'w \leftarrow w - \eta \frac{m}{\sqrt v + \varepsilon}'

_TEXT_TO_LATEX = {
    # Methods
    'w = (body, head_i); only the body is sent and averaged': (
        r'w = (w_{\text{body}},\; h_i) \qquad \text{sent and averaged: } w_{\text{body}}'
    ),
    """E - body_epochs epochs of the classifier with fixed features, then body_epochs epochs of the
    features with a fixed classifier; only the features are sent and averaged""": (
        r'w = (w_{\text{body}},\; h_i) \qquad '
        r'\min_{h_i} \text{CE} \text{ for } E - E_b \text{ epochs, then } '
        r'\min_{w_{\text{body}}} \text{CE} \text{ for } E_b'
    ),
    'w = (body, norm_i); only the body is sent and averaged': (
        r'w = (w_{\text{body}},\; \nu_i) \qquad \text{sent and averaged: } w_{\text{body}}'
    ),
    'v_i: CE + lambda / 2 ||v_i - w_g||^2; w: CE, sent and averaged': (
        r'v_i\text{: } \text{CE}(v_i) + \frac{\lambda}{2} \lVert v_i - w_g \rVert^2 \qquad '
        r'w\text{: } \text{CE}(w)\text{, sent and averaged}'
    ),
    'w: CE(w), sent and averaged; v_i: CE(alpha v_i + (1 - alpha) w) with respect to v_i alone': (
        r'w\text{: } \text{CE}(w)\text{, sent and averaged} \qquad '
        r'v_i\text{: } \text{CE}(\alpha v_i + (1 - \alpha) w)'
    ),
    'update[j] = median_i (w_i - w_g)[j]; of an even number the mean of the middle two': (
        r'\Delta_j = \operatorname{median}_i\, (w_i - w_g)_j'
    ),
    'update[j] = mean of (w_i - w_g)[j] without the floor(trim n) smallest and largest of n': (
        r'\Delta_j = \operatorname{mean}_i\, (w_i - w_g)_j \text{ without the } '
        r'\lfloor t n \rfloor \text{ smallest and largest}'
    ),
    """score_i = sum of ||u_i - u_j||^2 over the n - f - 2 nearest u_j, f = floor(byzantine n);
    update = mean of the `selected` updates with the smallest scores""": (
        r's_i = \sum_{j \text{ nearest to } i} \lVert u_i - u_j \rVert^2 '
        r'\text{ over } n - f - 2 \qquad f = \lfloor \text{byzantine} \cdot n \rfloor \qquad '
        r'\Delta = \operatorname{mean} \text{ of the best } u_i'
    ),
    'update = mean of the n - f updates with the smallest scores of Krum, f = floor(byzantine n)': (
        r'\Delta = \operatorname{mean} \text{ of the } n - f \text{ updates with the smallest } s_i'
    ),
    """q(u)[j] = ||u|| sign(u[j]) xi / s, s = 2^(bits - 1) - 1,
    xi = floor(s |u[j]| / ||u||), plus 1 with the probability of the remainder""": (
        r'q(u)_j = \lVert u \rVert\, \operatorname{sign}(u_j)\, \frac{\xi_j}{s} \qquad '
        r's = 2^{b - 1} - 1 \qquad \operatorname{E}[\xi_j] = \frac{s\,|u_j|}{\lVert u \rVert}'
    ),
    'u = update + e_i; send the ceil(share d) entries of u with the largest |u[j]|; '
    'e_i = the rest': (
        r'u = \Delta_i + e_i \qquad \text{sent: the } \lceil \varphi d \rceil '
        r'\text{ entries with the largest } |u_j| \qquad e_i \leftarrow \text{ the rest}'
    ),
    'update = 1 / m (sum_i u_i min(1, clip / ||u_i||) + noise clip N(0, I)), m the mean cohort '
    'size': (
        r'\Delta = \frac{1}{m} \left(\sum_i u_i \min\left(1, '
        r'\frac{C}{\lVert u_i \rVert}\right) + \sigma C\, \mathcal{N}(0, I)\right)'
    ),
    'w = w_g + 1/K sum (1 + t_i)^-a u_i over the K updates that arrive in the round; t_i in 0..T': (
        r'w = w_g + \frac{1}{K} \sum_i (1 + t_i)^{-a}\, u_i \qquad t_i \in \{0, \dots, T\}'
    ),
    'w = w_g + sum_i p_i (w_i - w_g), p_i = n_i / sum n by default (--aggregation)': (
        r'w = w_g + \sum_i p_i\,(w_i - w_g) \qquad p_i = \frac{n_i}{\sum_j n_j}'
        r'\text{ by default}'
    ),
    'CE + mu / 2 ||w - w_g||^2': rf'\text{{CE}} + \frac{{\mu}}{{2}} {_MOVED}',
    """CE + lambda sum_j (w - w_j)^T diag(F_j) (w - w_j), j the other clients of the last round,
    F_j = mean over j's examples of the squared gradient of CE at w_j""": (
        r'\text{CE} + \lambda \sum_j (w - w_j)^{\top} \operatorname{diag}(F_j)\,(w - w_j) \\'
        r'F_j = \operatorname{mean}_{(x, y) \text{ of } j} '
        r'\left(\nabla \text{CE}(x, y; w_j)\right)^2 '
        r'\qquad j \text{ the other clients of the last round}'
    ),
    """The local gradient is corrected by c - c_i, the gradient of the term <c - c_i, w - w_g>.
    c_i+ = c_i - c + (w_g - w_i) / (a_i lr), c += 1/N sum_i (c_i+ - c_i)""": (
        r'\text{CE} + \langle c - c_i,\; w - w_g \rangle \\'
        r'c_i^+ = c_i - c + \frac{w_g - w_i}{a_i\,\eta} \qquad '
        r'c \leftarrow c + \frac{1}{N} \sum_i (c_i^+ - c_i)'
    ),
    'w_g + tau sum_i p_i (w_i - w_g) / a_i, tau = sum_i p_i a_i': (
        r'w = w_g + \tau \sum_i p_i \frac{w_i - w_g}{a_i} \qquad \tau = \sum_i p_i a_i'
    ),
    """CE - <h_i, w> + alpha / 2 ||w - w_g||^2, then h_i -= alpha (w_i - w_g);
    h -= alpha / N sum_i (w_i - w_g), w = mean_i w_i - h / alpha""": (
        r'\text{CE} - \langle h_i, w \rangle + '
        rf'\frac{{\alpha}}{{2}} {_MOVED} '
        r'\qquad h_i \leftarrow h_i - \alpha (w_i - w_g) \\'
        r'h \leftarrow h - \frac{\alpha}{N} \sum_i (w_i - w_g) \qquad '
        r'w = \operatorname{mean}_i w_i - \frac{h}{\alpha}'
    ),
    'CE + mu mean -log(exp(cos(f, f_g) / tau) / (exp(cos(f, f_g) / tau) + '
    'exp(cos(f, f_p) / tau)))': rf'\text{{CE}} + \mu \operatorname{{mean}} {_CONTRAST}',
    """CE + beta ((n - 1)^2 / n) 1 / (F (F - 1)) sum_{i != j} K_ij^2;
    paper: CE + beta / F^2 ||K||_F^2""": (
        r'\text{CE} + \beta\, \frac{(n - 1)^2}{n}\, ' + _PAIRS + r' \\ '
        r'\text{paper:}\quad \text{CE} + \frac{\beta}{F^2} \lVert K \rVert_F^2'
    ),
    'CE of z_c - tau n_c^(-1/4), over the classes that the client has': (
        r'-\log \frac{e^{z_y - \tau n_y^{-1/4}}}{\sum_{c: n_c > 0} e^{z_c - \tau n_c^{-1/4}}}'
    ),
    'CE of z_c + tau log(n_c / n), over the classes that the client has': (
        r'-\log \frac{e^{z_y + \tau \log(n_y / n)}}{\sum_{c: n_c > 0} e^{z_c + \tau \log(n_c / n)}}'
    ),
    """CE of s z; s_c = 1 if the client has class c, else alpha;
    continuous: s_c = alpha + (1 - alpha) n_c / max_k n_k""": (
        r'-\log \frac{e^{s_y z_y}}{\sum_c e^{s_c z_c}} \qquad '
        r's_c = \begin{cases} 1 & \text{if the client has class } c \\ '
        r'\alpha & \text{otherwise} \end{cases} \\'
        r'\text{continuous:}\quad s_c = \alpha + (1 - \alpha) \frac{n_c}{\max_k n_k}'
    ),
    'CE + beta tau^2 KL(softmax(zg / tau) || softmax(z / tau))': (
        rf'{_DISTILLED}\left(p^g \,\|\, p\right) \qquad {_BOTH}'
    ),
    """CE + beta tau^2 KL(softmax(zt / tau) || softmax(z / tau)), zt the logits under the mean of
    the last M global models, including the current one""": (
        rf'{_DISTILLED}\left({_SOFTMAX}(z^t / \tau) \,\|\, {_SOFTMAX}(z / \tau)\right) \\'
        r'z^t \text{ under } \bar w = \frac{1}{M} \sum_{m=0}^{M-1} w_g^{(r-m)}'
        r'\text{, the mean of the last } M \text{ global models}'
    ),
    'CE + alpha sum_c (zg_c - z_c)^2': r'\text{CE} + \alpha \sum_c (z^g_c - z_c)^2',
    '-sum_c ((1 - smoothing) 1[c = y] + smoothing / C) log p_c': (
        _SMOOTHED + r' \qquad s = \text{smoothing}'
    ),
    '(1 - alpha) CE + alpha L_d, L_d = -sum_c pg_c log p_c, both softmaxes at temperature tau': (
        rf'(1 - \alpha)\,\text{{CE}} + \alpha L_d \qquad L_d = {_SOFT_CE} \qquad {_BOTH}'
    ),
    'CE + beta tau^2 KL(pg~ || p~), both softmaxes taken after removing the true class': (
        rf'{_DISTILLED}\left(\tilde p^g \,\|\, \tilde p\right) \qquad '
        r'\tilde p_c = \frac{e^{z_c / \tau}}{\sum_{k \ne y} e^{z_k / \tau}},\; c \ne y'
    ),
    'CE + beta tau^2 KL(u || p~), u uniform over the C - 1 classes other than the true one': (
        rf'{_DISTILLED}\left(u \,\|\, \tilde p\right) \qquad '
        r'u_c = \frac{1}{C - 1},\; c \ne y'
    ),
    """(1 - a_y) CE + a_y L_d, L_d = -sum_c pg_c log p_c, both softmaxes at temperature tau,
    a_c = (gamma - beta) / 2 E[2 pg_c - 1 | c] + (gamma + beta) / 2""": (
        rf'(1 - a_y)\,\text{{CE}} + a_y L_d \qquad L_d = {_SOFT_CE} \\'
        r'a_c = \frac{\gamma - \beta}{2}\, \operatorname{E}[2 p^g_c - 1 \mid y = c] + '
        r'\frac{\gamma + \beta}{2}'
    ),
    """CE + M_max ||m (zg - z)||^2, m[k] = max(0, M_class[k] M_sample - 0.1),
    M_class[k] = A[k, k] (1 - max_{j != k} A[j, k]), M_sample = 1 - sqrt(1 - pg_y)""": (
        r'\text{CE} + M_{\max} \lVert m \odot (z^g - z) \rVert^2 \qquad '
        r'm_k = \max(0,\; M^{\text{class}}_k M^{\text{sample}} - 0.1) \\'
        r'M^{\text{class}}_k = A_{kk} \left(1 - \max_{j \ne k} A_{jk}\right) \qquad '
        r'M^{\text{sample}} = 1 - \sqrt{1 - p^g_y}'
    ),
    """CE + beta tau^2 KL(pg' || p'), pg' over the classes that are neither majority classes of the
    client nor y, p' over all classes but y; majority: n_c > n / C""": (
        rf"{_DISTILLED}\left(p'^g \,\|\, p'\right) \\"
        rf"p'^g \text{{ a softmax }} {_MINORITY} \\ {_MASKED_STUDENT}"
    ),
    """CE + beta tau^2 KL(mu || p'), mu uniform over the classes that are neither majority classes
    of the client nor y, p' over all classes but y; majority: n_c > n / C""": (
        rf"{_DISTILLED}\left(\mu \,\|\, p'\right) \\"
        rf'\mu \text{{ uniform }} {_MINORITY} \\ {_MASKED_STUDENT}'
    ),
    """heavy_ball: m = beta m + update, w += lr m; ema: m = beta m + (1 - beta) update, w += lr m;
    nesterov: m = beta m + update, w += lr (update + beta m)""": (
        r'\text{heavy ball:}\quad m \leftarrow \beta m + \Delta \qquad w \leftarrow w + \eta m \\'
        r'\text{ema:}\quad m \leftarrow \beta m + (1 - \beta) \Delta \qquad '
        r'w \leftarrow w + \eta m \\'
        r'\text{nesterov:}\quad m \leftarrow \beta m + \Delta \qquad '
        r'w \leftarrow w + \eta (\Delta + \beta m)'
    ),
    'm = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w -= lr m / (sqrt(v) + eps)': (
        rf'{_ADAPTIVE_STEP} \qquad v \leftarrow b_2 v + (1 - b_2) g^2 \qquad {_MOMENTS}'
    ),
    'm = b1 m + (1 - b1) g, v -= (1 - b2) sign(v - g^2) g^2, w -= lr m / (sqrt(v) + eps)': (
        rf'{_ADAPTIVE_STEP} \qquad '
        r'v \leftarrow v - (1 - b_2) \operatorname{sign}(v - g^2)\, g^2 \qquad ' + _MOMENTS
    ),
    'v += g^2, w -= lr g / sqrt(v + eps)': (
        r'v \leftarrow v + g^2 \qquad w \leftarrow w - \eta \frac{g}{\sqrt{v + \varepsilon}}'
    ),
    'L = L_1 in the rounds 1..R, L_2 after them': (
        r'L = L_1 \text{ in the rounds } 1, \ldots, R \text{, } L_2 \text{ after them}'
    ),
    # Losses
    'a_y L_d, L_d = -sum_c pg_c log p_c, pg = softmax(zg / tau), p = softmax(z / tau)': (
        rf'a_y L_d \qquad L_d = {_SOFT_CE} \qquad {_BOTH}'
    ),
    """a_c = (gamma - beta) / 2 E[phi | y = c] + (gamma + beta) / 2,
    phi = pg_y - sum_{k != y} pg_k = 2 pg_y - 1, pg = softmax(zg / tau)""": (
        r'a_c = \frac{\gamma - \beta}{2}\, \operatorname{E}[\varphi \mid y = c] + '
        rf'\frac{{\gamma + \beta}}{{2}} \\ {_PHI} \qquad p^g = {_SOFTMAX}(z^g / \tau)'
    ),
    'sum_{x: y = c} phi(x), phi = 2 softmax(zg / tau)_y - 1': (
        rf'\sum_{{x:\, y = c}} \varphi(x) \qquad \varphi = 2\,{_SOFTMAX}(z^g / \tau)_y - 1'
    ),
    'a_c = (gamma - beta) / 2 phi_sum_c / count_c + (gamma + beta) / 2': (
        r'a_c = \frac{\gamma - \beta}{2} \cdot \frac{\text{phi sum}_c}{\text{count}_c} + '
        r'\frac{\gamma + \beta}{2}'
    ),
    '-log(exp(cos(f, f_g) / tau) / (exp(cos(f, f_g) / tau) + exp(cos(f, f_p) / tau)))': _CONTRAST,
    '1 / (F (F - 1)) sum_{i != j} K_ij^2, K the correlation matrix of f over the examples': (
        _PAIRS + r' \qquad K \text{ the correlations of } f \text{ over the examples}'
    ),
    '-log p_y, p = softmax(z - m)': (rf'-\log p_y \qquad p = {_SOFTMAX}(z - m)'),
    'A[j, k] = share of the examples of class j whose largest logit is k': (
        r'A_{jk} = \text{share of the examples of class } j \text{ whose largest logit is } k'
    ),
    """M[k] = M_max max(0, M_class[k] M_sample - 0.1),
    M_class[k] = A[k, k] (1 - max_{j != k} A[j, k]), M_sample = 1 - sqrt(1 - pg_y),
    pg = softmax(zg)""": (
        _CREDIBLE + r' \\'
        r'M^{\text{class}}_k = A_{kk} \left(1 - \max_{j \ne k} A_{jk}\right) \qquad '
        rf'M^{{\text{{sample}}}} = 1 - \sqrt{{1 - p^g_y}} \qquad p^g = {_SOFTMAX}(z^g)'
    ),
    'tau^2 KL(softmax(zg / tau) || softmax(z / tau))': (
        rf'\tau^2\, {_KL}\left({_SOFTMAX}(z^g / \tau) \,\|\, {_SOFTMAX}(z / \tau)\right)'
    ),
    '-sum_c pg_c log p_c, pg = softmax(zg / tau), p = softmax(z / tau)': (
        rf'{_SOFT_CE} \qquad {_BOTH}'
    ),
    'n_c > n / C, n = sum_c n_c': r'n_c > \frac{n}{C} \qquad n = \sum_c n_c',
    """tau^2 KL(pg' || p'), pg' = softmax of zg / tau over the classes neither in the majority nor
    y, p' = softmax of z / tau over all classes but y""": (
        rf"\tau^2\, {_KL}\left(p'^g \,\|\, p'\right) \\"
        rf"p'^g \text{{ a softmax of }} z^g / \tau \; {_MINORITY_LOSS} \\"
        r"p' \text{ a softmax of } z / \tau \text{ over all classes but } y"
    ),
    """tau^2 KL(u' || p'), u' uniform over the classes neither in the majority nor y,
    p' = softmax of z / tau over all classes but y""": (
        rf"\tau^2\, {_KL}\left(u' \,\|\, p'\right) \qquad u' \text{{ uniform }} "
        rf'{_MINORITY_LOSS} \\'
        r"p' \text{ a softmax of } z / \tau \text{ over all classes but } y"
    ),
    '||M (zg - z)||^2 = sum_k M_k^2 (zg_k - z_k)^2': (
        r'\lVert M \odot (z^g - z) \rVert^2 = \sum_k M_k^2 (z^g_k - z_k)^2'
    ),
    'tau^2 KL(pg~ || p~), both the softmax at tau over the C - 1 classes other than y': (
        rf'\tau^2\, {_KL}\left(\tilde p^g \,\|\, \tilde p\right) \qquad '
        r'\tilde p_c = \frac{e^{z_c / \tau}}{\sum_{k \ne y} e^{z_k / \tau}},\; c \ne y'
    ),
    '1/2 ||w - w_g||^2': rf'\frac{{1}}{{2}} {_MOVED}',
    '-log p_y, p = softmax(z)': rf'-\log\,p_y \qquad p = {_SOFTMAX}(z)',
    '-sum_c ((1 - smoothing) 1[c = y] + smoothing / C) log p_c, p = softmax(z)': (
        rf'{_SMOOTHED} \qquad p = {_SOFTMAX}(z) \qquad s = \text{{smoothing}}'
    ),
    # Measures
    'argmax_c mean_{x of class c} a(x)': (
        r'\operatorname{argmax}_c \operatorname{mean}_{x \text{ of class } c} a(x)'
    ),
    "<A, A'> / (||A|| ||A'||)": (
        r"\frac{\langle A, A' \rangle}{\lVert A \rVert \, \lVert A' \rVert}"
    ),
    'min {t : A^t >= target}': r'\min \{t : A^t \ge \text{target}\}',
    "(reference's rounds to the target) / (this run's rounds to the target)": (
        r"\frac{\text{the reference's rounds to the target}}"
        r"{\text{this run's rounds to the target}}"
    ),
    'm = sum_i v_i / n, s = sqrt(sum_i (v_i - m)^2 / (n - 1))': (
        r'm = \frac{1}{n} \sum_i v_i \qquad s = \sqrt{\frac{1}{n - 1} \sum_i (v_i - m)^2}'
    ),
    '||w_i - w_g||; its mean over i is the weight divergence': (
        r'\lVert w_i - w_g \rVert\text{; its mean over } i \text{ is the weight divergence}'
    ),
    'sum_c |p_i(c) - pg(c)|, pg(c) = A_c / sum_k A_k; its mean over i is the distribution '
    'divergence': (
        r'\sum_c |p_i(c) - p^g(c)| \qquad p^g(c) = \frac{A_c}{\sum_k A_k}'
        r'\text{; its mean over } i \text{ is the distribution divergence}'
    ),
    'mean_i ||v_i||^2 / ||mean_i v_i||^2 >= 1': (
        r'\frac{\operatorname{mean}_i \lVert v_i \rVert^2}'
        r'{\lVert \operatorname{mean}_i v_i \rVert^2} \ge 1'
    ),
    'F_c = max_{t < T} A_c^t - A_c^T': r'F_c = \max_{t < T} A_c^t - A_c^T',
    'F = mean_c F_c': r'F = \operatorname{mean}_c F_c',
    'p_i(c) = n_ic / n_i': r'p_i(c) = \frac{n_{ic}}{n_i}',
    '(1 - p_i(c)) / (C - 1)': r'\frac{1 - p_i(c)}{C - 1}',
    'sum_c p_i(c) A_c and sum_c (1 - p_i(c)) / (C - 1) A_c': (
        r'\sum_c p_i(c) A_c \quad\text{and}\quad \sum_c \frac{1 - p_i(c)}{C - 1} A_c'
    ),
    'mean_x KL(softmax(zg(x)) || softmax(z(x)))': (
        rf'\operatorname{{mean}}_x {_KL}\left({_SOFTMAX}(z^g(x)) \,\|\, {_SOFTMAX}(z(x))\right)'
    ),
}


def normalised(paragraph: str) -> str:
    """A paragraph with single spaces, as `EQUATIONS` has it."""
    return ' '.join(paragraph.split())


EQUATIONS = {normalised(text): latex for text, latex in _TEXT_TO_LATEX.items()}

"""A table and its bundle as an image of the Open Container Initiative (OCI).

An image is a manifest and the blobs that the manifest names by SHA-256: a description of the table
(the image's config), the table, and where there are any its bundle and a signature. `publication`
writes images, `retrieval` reads them; a folder (`layout_folder`) or a registry (`registry`, with
the extra ``oci``) keeps them. Manifests, sizes, digests and names that come from there are not
trusted.
"""
